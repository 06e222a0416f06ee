"""Watches one trial: time limits, the first rank that fails, and how the trial ended.

The exit code alone never decides: a rank counts as done when its result file is completely on disk.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distbench.core.case import Limits
from distbench.core.units import duration_text
from distbench.ipc.trial_files import (
    Sign,
    error_file,
    interim_file,
    log_file,
    progress_file,
    read_progress,
    result_file,
)
from distbench.launchers.base import Exit, Handle, LaunchError, NodeLostError
from distbench.record import NODE_LOST, Failure, Status
from distbench.run import hang_diagnosis
from distbench.run.control import StopRequest
from distbench.run.failure_reasons import (
    classify,
    is_symptom,
    killed_text,
    out_of_memory,
    reason_of,
    user_error,
)
from distbench.run.hang_diagnosis import Blame
from distbench.system.log_files import Logs, recorded, tail

if TYPE_CHECKING:
    from distbench.core.job import JobKind

_POLL_S = 0.25
# after the first failure the others get this long to report theirs, so that cause and victim differ
_GRACE_S = 1.0
_STACKS_S = 0.5
# from the result of the last rank to its end: gloo may deadlock while it is torn down
_END_S = 10.0
# a deep stack of the main thread, which is the last, and its heading
_STACK_TAIL = 64_000
# phases before the job itself, each with its own limit
_SETTING_UP = ("start", "build")
# what no earlier delivery changes; a mismatch says that what was measured is not what was requested
_FINAL = (Status.MEASURED, Status.CANCELLED, Status.MISMATCH)


@dataclass(frozen=True)
class Ending:
    """How a trial ended."""

    status: Status
    reason: str
    failure: Failure | None = None

    def on(self, nodes: Mapping[str, Sequence[int]]) -> Ending:
        """With the name of the node of the rank that has failed, of *nodes* and their ranks."""
        rank = self.failure.rank if self.failure else None
        node = next((name for name, ranks in nodes.items() if rank in ranks), None)
        return replace(self, reason=f"{self.reason} (rank {rank} is on {node})") if node else self


class Watch:
    """Watches the ranks of one trial until they have finished, failed, or exceeded a time limit."""

    def __init__(
        self,
        handle: Handle,
        folder: Path,
        processes: int,
        limits: Limits,
        stop: StopRequest,
        kind: JobKind,
        *,
        stacks_tell: bool = True,
        end_s: float = _END_S,
    ) -> None:
        """Watch what *handle* has launched in *folder*.

        Args:
            stacks_tell: A rank that waits for others shows it in its stack, as it does unless a GPU computes.
            end_s: Seconds that ranks have for their end when all have delivered.
        """
        self._handle, self._folder, self._ranks = handle, folder, range(processes)
        self._limits, self._stop, self._kind = limits, stop, kind
        self._stacks_tell, self._end_s = stacks_tell, end_s
        self._exits: dict[int, Exit] = {}
        self._lost: LaunchError | None = None
        self._logs = Logs(log_file(folder, rank) for rank in self._ranks)
        self._began = time.monotonic()
        self._signs: dict[int, tuple[Sign | None, float]] = dict.fromkeys(self._ranks, (None, self._began))
        """Rank -> its last sign of life, and when it was first seen here: another host has another clock."""

    def until_end(self) -> Ending:
        """How the trial ended; none of its processes is left then."""
        try:
            return self._spared(self._follow())
        finally:
            self._handle.stop()
            self._logs.cut()

    def _spared(self, ending: Ending) -> Ending:
        """*ending*, or that of a measured trial, if every rank had delivered what counts before it failed."""
        kept = (
            interim_file(self._folder, rank).is_file() or self._has_delivered(rank) for rank in self._ranks
        )
        if ending.status in _FINAL or not all(kept):
            return ending
        return replace(ending, status=Status.MEASURED, reason=f"incomplete: {ending.reason}")

    def _follow(self) -> Ending:
        while True:
            self._hear(_POLL_S)
            if self._stop.asked:
                return Ending(Status.CANCELLED, "stopped by a signal")
            if any(self._failed(rank) for rank in self._ranks):
                return self._failure()
            if len(self._exits) == len(self._ranks):
                return Ending(Status.MEASURED, "")
            if self._lost:
                return self._lost_ending(self._lost)
            if late := self._late():
                return late

    def _hear(self, seconds: float) -> None:
        """Take the ends of ranks, waiting up to *seconds* for the first; cut what grows meanwhile."""
        try:
            for seen in self._handle.wait(seconds):
                self._exits[seen.rank] = seen
        except LaunchError as error:
            self._lost = error
        self._logs.cut()

    def _lost_ending(self, lost: LaunchError) -> Ending:
        """What the ranks were started from is gone, and they with it, unless they had all delivered."""
        if all(map(self._has_delivered, self._ranks)):
            return Ending(Status.MEASURED, "")
        killed = out_of_memory(lost.memory)
        reason = f"{lost}: {killed_text(lost.memory)}" if killed else str(lost)
        status = Status.OOM_HOST if killed else Status.CRASHED
        phase = NODE_LOST if isinstance(lost, NodeLostError) else self._progress(0)
        return Ending(status, reason, self._failure_of(None, phase, ""))

    def _has_delivered(self, rank: int) -> bool:
        return result_file(self._folder, rank).is_file()

    def _failed(self, rank: int) -> bool:
        gone = rank in self._exits and not self._has_delivered(rank)
        return gone or error_file(self._folder, rank).is_file()

    def _failure(self) -> Ending:
        """Wait for the other ranks to report, then name the rank that failed first."""
        end = time.monotonic() + _GRACE_S
        while len(self._exits) < len(self._ranks) and (left := end - time.monotonic()) > 0 and not self._lost:
            self._hear(left)
        failures = [failure for rank in self._ranks if (failure := self._reported(rank))]
        causes = [failure for failure in failures if not failure["symptom"]]
        if self._lost and not causes:
            # ranks elsewhere tell of the connections that went with it, at times before it is known here
            return self._lost_ending(self._lost)
        first = min(causes or failures, key=lambda failure: failure["at"])
        told = self._failure_of(first["rank"], first["phase"], first.get("traceback", ""))
        return Ending(classify(first), reason_of(first), replace(told, user_error=user_error(first)))

    def _reported(self, rank: int) -> dict[str, Any] | None:
        """Failure of *rank*, or None if it has not failed."""
        file = error_file(self._folder, rank)
        if file.is_file():
            failure: dict[str, Any] = json.loads(file.read_text())
            return {**failure, "rank": rank, "symptom": is_symptom(failure)}
        if rank not in self._exits or self._has_delivered(rank):
            return None
        seen = self._exits[rank]
        phase = self._progress(rank)
        # gloo's threads abort the process when a peer exits; an abort without a message is a symptom
        symptom = seen.code == -signal.SIGABRT
        told = {"rank": rank, "at": seen.at, "phase": phase, "symptom": symptom}
        return {**told, "code": seen.code, "memory": seen.memory}

    def _late(self) -> Ending | None:
        if all(map(self._has_delivered, self._ranks)):
            # nothing that it measures is missing, so what hangs at its end is ended
            is_over = all(self._silence(rank)[1] > self._end_s for rank in self._ranks)
            return Ending(Status.MEASURED, "") if is_over else None
        if time.monotonic() - self._began > self._limits.trial:
            return self._timed_out(Status.HANG, "trial", self._limits.trial)
        for rank in self._ranks:
            phase, silent_s = self._silence(rank)
            key = phase if phase in _SETTING_UP else self._kind.deadline
            limit = getattr(self._limits, key)
            if rank not in self._exits and not self._has_delivered(rank) and silent_s > limit:
                return self._timed_out(Status.INIT_TIMEOUT if phase == key else Status.HANG, key, limit)
        return None

    def _silence(self, rank: int) -> tuple[str, float]:
        """Phase of *rank*, and the seconds since its last sign of life was seen."""
        sign, now = read_progress(progress_file(self._folder, rank)), time.monotonic()
        if sign != self._signs[rank][0]:
            self._signs[rank] = sign, now
        return (sign or Sign()).phase, now - self._signs[rank][1]

    def _timed_out(self, status: Status, key: str, limit: float) -> Ending:
        if silent := self._handle.silence():
            # ranks that wait for those of a node that is gone reach their limits before it is given up
            reason = f"{silent}; limits.{key} = {duration_text(limit)} was exceeded meanwhile"
            return Ending(Status.CRASHED, reason, self._failure_of(None, NODE_LOST, ""))
        before = self._handle.states()
        self._handle.signal(signal.SIGUSR1)
        # the ranks themselves write their stacks
        self._hear(_STACKS_S)
        self._handle.fetch()
        logs = {rank: tail(log_file(self._folder, rank), _STACK_TAIL) for rank in self._ranks}
        blamed = self._blamed(before, self._handle.states(), logs)
        where = ", ".join(f"rank {r} at {self._progress(r)}" for r in self._ranks)
        reason = f"exceeded limits.{key} = {duration_text(limit)} ({where})"
        if blamed and blamed.why:
            reason += f"; rank {blamed.rank} {blamed.why}"
        elif places := hang_diagnosis.waits(logs) if self._stacks_tell else "":
            reason += f"; {places}"
        rank = blamed.rank if blamed else None
        phase = self._progress(rank) if rank is not None else key
        return Ending(status, reason, self._failure_of(rank, phase, ""))

    def _blamed(
        self, before: Mapping[int, str], after: Mapping[int, str], logs: Mapping[int, str]
    ) -> Blame | None:
        """The rank that holds up the others, by the states of all processes and by the stacks in the logs."""
        slowest = self._slowest()
        return (
            hang_diagnosis.halted(before, after, "Tt")
            or (Blame(slowest, "") if slowest is not None else None)
            or hang_diagnosis.halted(before, after, "D")
            or (hang_diagnosis.outside(logs) if self._stacks_tell else None)
        )

    def _slowest(self) -> int | None:
        """Rank that is furthest behind; None if all are at the same step."""
        seen = {rank: read_progress(progress_file(self._folder, rank)) for rank in self._ranks}
        order = (*_SETTING_UP, *self._kind.phases, "done")
        # a plug-in may have phases that it does not declare
        numbers = {phase: number for number, phase in enumerate(order)}
        places = {r: (numbers.get(p.phase, 0), p.step) if p else (-1, 0) for r, p in seen.items()}
        behind = min(places.values())
        slow = [rank for rank, place in places.items() if place == behind]
        return slow[0] if len(slow) < len(places) else None

    def _progress(self, rank: int) -> str:
        sign = read_progress(progress_file(self._folder, rank)) or Sign()
        return f"{sign.phase} {sign.step}" if sign.phase in self._kind.phases else sign.phase

    def _failure_of(self, rank: int | None, phase: str, traceback: str) -> Failure:
        self._handle.fetch()
        # if no rank can be blamed, the stacks of all are the evidence
        logs = {r: recorded(log_file(self._folder, r)) for r in (self._ranks if rank is None else [rank])}
        log = "\n".join(text if len(logs) == 1 else f"--- rank {r}\n{text}" for r, text in logs.items())
        steps = {str(r): self._progress(r) for r in self._ranks}
        return Failure(rank=rank, phase=phase.split()[0], traceback=traceback, log=log, steps=steps)
