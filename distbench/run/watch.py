"""Watches one trial: deadlines, the first rank that fails, and the verdict.

The exit code alone never decides a trial that has delivered: a rank counts as done when its
result file is whole on the disk.
"""

from __future__ import annotations

import json
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distbench.case import Limits
from distbench.launchers.base import Exit, Handle
from distbench.record import Failure, Status
from distbench.run.stop import StopRequest
from distbench.trial import (
    CHECKPOINT,
    STEPPING,
    error_file,
    log_file,
    progress_file,
    read_progress,
    result_file,
)
from distbench.units import duration_text

_POLL_S = 0.25
# after the first failure the others get this long to tell theirs, so that cause and victim are told apart
_GRACE_S = 1.0
_LOG_TAIL = 4000

# what a rank says whose peer has gone: a symptom, not a cause
_SYMPTOM = re.compile(
    r"Connection (closed|reset|refused)|Broken pipe|Socket Timeout|remote process exited"
    r"|recvValue failed|sendBytes failed|store->get|Timed out waiting .*ms for|Application timeout",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Ending:
    """How a trial ended."""

    status: Status
    reason: str
    failure: Failure | None = None


class Watch:
    """Watches the ranks of one trial until they have delivered, failed, or passed a deadline."""

    def __init__(
        self, handle: Handle, folder: Path, processes: int, limits: Limits, stop: StopRequest
    ) -> None:
        self._handle, self._folder, self._ranks = handle, folder, range(processes)
        self._limits, self._stop = limits, stop
        self._exits: dict[int, Exit] = {}
        self._began = time.time()

    def until_end(self) -> Ending:
        """Return how the trial ended; no process of it is left then."""
        try:
            ending = self._follow()
        finally:
            self._handle.stop()
        return ending

    def _follow(self) -> Ending:
        while True:
            for seen in self._handle.wait(_POLL_S):
                self._exits[seen.rank] = seen
            if self._stop.asked:
                return Ending(Status.CANCELLED, "stopped by a signal")
            if any(self._failed(rank) for rank in self._ranks):
                return self._failure()
            if len(self._exits) == len(self._ranks):
                return Ending(Status.MEASURED, "")
            if late := self._late():
                return late

    def _failed(self, rank: int) -> bool:
        gone = rank in self._exits and not result_file(self._folder, rank).is_file()
        return gone or error_file(self._folder, rank).is_file()

    def _failure(self) -> Ending:
        """Wait for the victims to tell their part, then name the rank that failed first."""
        end = time.monotonic() + _GRACE_S
        while len(self._exits) < len(self._ranks) and (left := end - time.monotonic()) > 0:
            for seen in self._handle.wait(left):
                self._exits[seen.rank] = seen
        failures = [found for rank in self._ranks if (found := self._told(rank))]
        causes = [found for found in failures if not found["symptom"]] or failures
        first = min(causes, key=lambda found: found["at"])
        return Ending(
            classify(first),
            reason_of(first),
            self._failure_of(first["rank"], first["phase"], first.get("traceback", "")),
        )

    def _told(self, rank: int) -> dict[str, Any] | None:
        """Return what is known of the failure of *rank*, or None if it has not failed."""
        file = error_file(self._folder, rank)
        if file.is_file():
            told: dict[str, Any] = json.loads(file.read_text())
            return {**told, "rank": rank, "symptom": bool(_SYMPTOM.search(told["message"]))}
        if rank not in self._exits or result_file(self._folder, rank).is_file():
            return None
        seen = self._exits[rank]
        phase = self._progress(rank)
        # gloo's threads abort the process when a peer goes; an abort without words is a symptom
        symptom = seen.code == -signal.SIGABRT
        return {"rank": rank, "at": seen.at, "phase": phase, "code": seen.code, "symptom": symptom}

    def _late(self) -> Ending | None:
        now = time.time()
        if now - self._began > self._limits.trial:
            return self._timed_out(Status.HANG, "trial", self._limits.trial, self._slowest())
        for rank in self._ranks:
            phase, _, since = read_progress(progress_file(self._folder, rank)) or ("start", 0, self._began)
            # most of a checkpoint's trial is building engines, and writing and reading what they hold
            key = {"start": "start", "build": "build", CHECKPOINT: "build"}.get(phase, "step")
            limit = getattr(self._limits, key)
            if rank not in self._exits and now - since > limit:
                if phase == key:
                    return self._timed_out(Status.INIT_TIMEOUT, key, limit, rank)
                return self._timed_out(Status.HANG, key, limit, self._slowest())
        return None

    def _timed_out(self, status: Status, key: str, limit: float, rank: int | None) -> Ending:
        self._handle.signal(signal.SIGUSR1)
        # the dump of the stacks is written by the ranks themselves
        self._handle.wait(0.5)
        where = ", ".join(f"rank {r} at {self._progress(r)}" for r in self._ranks)
        reason = f"passed the deadline limits.{key} = {duration_text(limit)} ({where})"
        phase = self._progress(rank) if rank is not None else key
        return Ending(status, reason, self._failure_of(rank, phase, ""))

    def _slowest(self) -> int | None:
        """Return the rank that is furthest behind, or None if none is."""
        seen = {rank: read_progress(progress_file(self._folder, rank)) for rank in self._ranks}
        order = ("start", "build", *STEPPING, "done")
        places = {r: (order.index(p[0]), p[1]) if p else (-1, 0) for r, p in seen.items()}
        behind = min(places.values())
        slow = [rank for rank, place in places.items() if place == behind]
        return slow[0] if len(slow) < len(places) else None

    def _progress(self, rank: int) -> str:
        phase, step, _ = read_progress(progress_file(self._folder, rank)) or ("start", 0, 0.0)
        return f"{phase} {step}" if phase in STEPPING else phase

    def _failure_of(self, rank: int | None, phase: str, traceback: str) -> Failure:
        # where no rank can be blamed, the stacks of all of them are the evidence
        logs = {r: _tail(log_file(self._folder, r)) for r in (self._ranks if rank is None else [rank])}
        log = "\n".join(text if len(logs) == 1 else f"--- rank {r}\n{text}" for r, text in logs.items())
        steps = {str(r): self._progress(r) for r in self._ranks}
        return Failure(rank=rank, phase=phase.split()[0], traceback=traceback, log=log, steps=steps)


def classify(found: dict[str, Any]) -> Status:
    """Return the status of a trial whose first failure is *found*."""
    types = found.get("types", [])
    message = found.get("message", "")
    if "Mismatch" in types:
        return Status.MISMATCH
    if "Refused" in types:
        return Status.UNSUPPORTED
    if "OutOfMemoryError" in types:
        return Status.OOM_GPU
    if "MemoryError" in types or "DefaultCPUAllocator: can't allocate" in message:
        return Status.OOM_HOST
    return Status.CRASHED


def reason_of(found: dict[str, Any]) -> str:
    """Return one sentence for the first failure *found*."""
    rank, phase = found["rank"], found["phase"]
    if "types" in found:
        if "Refused" in found["types"]:
            return str(found["message"])
        first_line = (found["message"].strip().splitlines() or [""])[0]
        return f"rank {rank} in {phase}: {found['types'][0]}: {first_line}"
    code = found["code"]
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"left with exit code {code}"
    return f"rank {rank} in {phase}: {how} before it delivered"


def _tail(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            stream.seek(max(0, file.stat().st_size - _LOG_TAIL))
            return stream.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
