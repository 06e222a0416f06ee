"""Watches one trial: time limits, the first rank that fails, and how the trial ended.

The exit code alone never decides: a rank counts as done when its result file is completely on disk.
"""

from __future__ import annotations

import json
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distbench.case import Limits
from distbench.launchers.base import Exit, Handle
from distbench.record import Failure, Status
from distbench.run.control import StopRequest
from distbench.trial import Sign, error_file, log_file, progress_file, read_progress, result_file
from distbench.units import duration_text

if TYPE_CHECKING:
    from distbench.jobs.base import Kind

_POLL_S = 0.25
# after the first failure the others get this long to report theirs, so that cause and victim differ
_GRACE_S = 1.0
_LOG_TAIL = 4000
# phases before the job itself, each with its own limit
_SETTING_UP = ("start", "build")

# what a rank reports when its peer has exited: a symptom, not a cause
_SYMPTOM = re.compile(
    r"Connection (closed|reset|refused)|Broken pipe|Socket Timeout|remote process exited"
    r"|recvValue failed|sendBytes failed|store->get|Timed out waiting .*ms for|Application timeout",
    re.IGNORECASE,
)

# the first that an exception is, by the names of its types
_STATUSES = {
    "Mismatch": Status.MISMATCH,
    "Refused": Status.UNSUPPORTED,
    "OutOfMemoryError": Status.OOM_GPU,
    "MemoryError": Status.OOM_HOST,
}


@dataclass(frozen=True)
class Ending:
    """How a trial ended."""

    status: Status
    reason: str
    failure: Failure | None = None


class Watch:
    """Watches the ranks of one trial until they have finished, failed, or exceeded a time limit."""

    def __init__(
        self, handle: Handle, folder: Path, processes: int, limits: Limits, stop: StopRequest, kind: Kind
    ) -> None:
        self._handle, self._folder, self._ranks = handle, folder, range(processes)
        self._limits, self._stop, self._kind = limits, stop, kind
        self._exits: dict[int, Exit] = {}
        self._began = time.monotonic()
        self._signs: dict[int, tuple[Sign | None, float]] = dict.fromkeys(self._ranks, (None, self._began))
        """Rank -> its last sign of life, and when it was first seen here: another host has another clock."""

    def until_end(self) -> Ending:
        """How the trial ended; none of its processes is left then."""
        try:
            return self._follow()
        finally:
            self._handle.stop()

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
        """Wait for the other ranks to report, then name the rank that failed first."""
        end = time.monotonic() + _GRACE_S
        while len(self._exits) < len(self._ranks) and (left := end - time.monotonic()) > 0:
            for seen in self._handle.wait(left):
                self._exits[seen.rank] = seen
        failures = [failure for rank in self._ranks if (failure := self._reported(rank))]
        causes = [failure for failure in failures if not failure["symptom"]] or failures
        first = min(causes, key=lambda failure: failure["at"])
        return Ending(
            classify(first),
            reason_of(first),
            self._failure_of(first["rank"], first["phase"], first.get("traceback", "")),
        )

    def _reported(self, rank: int) -> dict[str, Any] | None:
        """Failure of *rank*, or None if it has not failed."""
        file = error_file(self._folder, rank)
        if file.is_file():
            failure: dict[str, Any] = json.loads(file.read_text())
            return {**failure, "rank": rank, "symptom": bool(_SYMPTOM.search(failure["message"]))}
        if rank not in self._exits or result_file(self._folder, rank).is_file():
            return None
        seen = self._exits[rank]
        phase = self._progress(rank)
        # gloo's threads abort the process when a peer exits; an abort without a message is a symptom
        symptom = seen.code == -signal.SIGABRT
        return {"rank": rank, "at": seen.at, "phase": phase, "code": seen.code, "symptom": symptom}

    def _late(self) -> Ending | None:
        if time.monotonic() - self._began > self._limits.trial:
            return self._timed_out(Status.HANG, "trial", self._limits.trial, self._slowest())
        for rank in self._ranks:
            phase, silent_s = self._silence(rank)
            key = phase if phase in _SETTING_UP else self._kind.deadline
            limit = getattr(self._limits, key)
            if rank not in self._exits and silent_s > limit:
                if phase == key:
                    return self._timed_out(Status.INIT_TIMEOUT, key, limit, rank)
                return self._timed_out(Status.HANG, key, limit, self._slowest())
        return None

    def _silence(self, rank: int) -> tuple[str, float]:
        """Phase of *rank*, and the seconds since its last sign of life was seen."""
        sign, now = read_progress(progress_file(self._folder, rank)), time.monotonic()
        if sign != self._signs[rank][0]:
            self._signs[rank] = sign, now
        return (sign or Sign()).phase, now - self._signs[rank][1]

    def _timed_out(self, status: Status, key: str, limit: float, rank: int | None) -> Ending:
        self._handle.signal(signal.SIGUSR1)
        # the ranks themselves write their stacks
        self._handle.wait(0.5)
        where = ", ".join(f"rank {r} at {self._progress(r)}" for r in self._ranks)
        reason = f"exceeded limits.{key} = {duration_text(limit)} ({where})"
        phase = self._progress(rank) if rank is not None else key
        return Ending(status, reason, self._failure_of(rank, phase, ""))

    def _slowest(self) -> int | None:
        """Rank that is furthest behind; None if all are at the same step."""
        seen = {rank: read_progress(progress_file(self._folder, rank)) for rank in self._ranks}
        order = (*_SETTING_UP, *self._kind.phases, "done")
        places = {r: (order.index(p.phase), p.step) if p else (-1, 0) for r, p in seen.items()}
        behind = min(places.values())
        slow = [rank for rank, place in places.items() if place == behind]
        return slow[0] if len(slow) < len(places) else None

    def _progress(self, rank: int) -> str:
        sign = read_progress(progress_file(self._folder, rank)) or Sign()
        return f"{sign.phase} {sign.step}" if sign.phase in self._kind.phases else sign.phase

    def _failure_of(self, rank: int | None, phase: str, traceback: str) -> Failure:
        # if no rank can be blamed, the stacks of all are the evidence
        logs = {r: _tail(log_file(self._folder, r)) for r in (self._ranks if rank is None else [rank])}
        log = "\n".join(text if len(logs) == 1 else f"--- rank {r}\n{text}" for r, text in logs.items())
        steps = {str(r): self._progress(r) for r in self._ranks}
        return Failure(rank=rank, phase=phase.split()[0], traceback=traceback, log=log, steps=steps)


def classify(failure: dict[str, Any]) -> Status:
    """Status of a trial whose first failure is *failure*."""
    types = failure.get("types", [])
    if "DefaultCPUAllocator: can't allocate" in failure.get("message", ""):
        types = [*types, "MemoryError"]
    return next((status for type_, status in _STATUSES.items() if type_ in types), Status.CRASHED)


def reason_of(failure: dict[str, Any]) -> str:
    """One sentence on the first *failure*."""
    rank, phase = failure["rank"], failure["phase"]
    if "types" in failure:
        if "Refused" in failure["types"]:
            return str(failure["message"])
        first_line = (failure["message"].strip().splitlines() or [""])[0]
        return f"rank {rank} in {phase}: {failure['types'][0]}: {first_line}"
    code = failure["code"]
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
    return f"rank {rank} in {phase}: {how} before it wrote its result"


def _tail(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            stream.seek(max(0, file.stat().st_size - _LOG_TAIL))
            return stream.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
