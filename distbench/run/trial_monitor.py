"""Monitor the ranks of a trial: time limits, first failure, outcome.

The exit code alone never decides: a rank counts as done when its result file is completely on disk.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from distbench.core.measurement import TimeLimits
from distbench.core.units import format_duration
from distbench.ipc.messages import RankExit
from distbench.ipc.trial_files import (
    ProgressMark,
    RankError,
    error_file,
    log_file,
    partial_result_file,
    progress_file,
    read_progress,
    result_file,
)
from distbench.launchers.base import LaunchError, NodeLostError, RunningLaunch
from distbench.record import NODE_LOST_PHASE, Failure, Status
from distbench.run import hang_diagnosis
from distbench.run.failure_reasons import RankFailure, sigkill_text, uncaught_text, was_oom_killed
from distbench.run.hang_diagnosis import HangSuspect
from distbench.run.interruption import StopRequest
from distbench.system.log_files import BoundedLogs, log_excerpt, read_tail

if TYPE_CHECKING:
    from distbench.core.job import JobKind

_POLL_S = 0.25
# after the first failure the others get this long to report theirs, to tell the cause from its effects
_GRACE_S = 1.0
_STACK_DUMP_S = 0.5
# from the result of the last rank to its end: gloo may deadlock while it is torn down
_EXIT_GRACE_S = 10.0
# a deep stack of the main thread, which comes last, and its heading
_STACK_TAIL = 64_000
# what the C++ runtime writes as it aborts, and what other threads may write after it
_ABORT_TAIL = 8_000
# phases before the job itself, each with its own limit
_SETUP_PHASES = ("start", "build")
# statuses that delivered results do not change; after a mismatch, the results are not those of the request
_FINAL_STATUSES = (Status.MEASURED, Status.CANCELLED, Status.MISMATCH)


@dataclass(frozen=True)
class TrialOutcome:
    """Status, reason and failure of a finished trial."""

    status: Status
    reason: str
    failure: Failure | None = None

    def with_node_name(self, nodes: Mapping[str, Sequence[int]]) -> TrialOutcome:
        """Add the name of the failed rank's node, from *nodes* and their ranks."""
        rank = self.failure.rank if self.failure else None
        node = next((name for name, ranks in nodes.items() if rank in ranks), None)
        return replace(self, reason=f"{self.reason} (rank {rank} is on {node})") if node else self


class TrialMonitor:
    """Watches the ranks of one trial until they have finished, failed, or exceeded a time limit."""

    def __init__(
        self,
        launch: RunningLaunch,
        folder: Path,
        processes: int,
        limits: TimeLimits,
        stop: StopRequest,
        kind: JobKind,
        *,
        blame_by_stack: bool = True,
        exit_grace_s: float = _EXIT_GRACE_S,
    ) -> None:
        """Watch what *launch* has launched in *folder*.

        Args:
            blame_by_stack: A rank that waits for others shows it in its stack, as is the case unless a GPU
                computes.
            exit_grace_s: Seconds that ranks may take to exit when all have delivered.
        """
        self._launch, self._folder, self._ranks = launch, folder, range(processes)
        self._limits, self._stop, self._kind = limits, stop, kind
        self._blame_by_stack, self._exit_grace_s = blame_by_stack, exit_grace_s
        self._exits: dict[int, RankExit] = {}
        self._lost_error: LaunchError | None = None
        self._logs = BoundedLogs(log_file(folder, rank) for rank in self._ranks)
        self._began = time.monotonic()
        self._last_progress: dict[int, tuple[ProgressMark | None, float]] = dict.fromkeys(
            self._ranks, (None, self._began)
        )
        """Rank -> its last sign of progress, and when it was first seen here: another host has a different
        clock.
        """

    def wait(self) -> TrialOutcome:
        """Wait for the end of the trial, stop all processes and return the outcome."""
        try:
            return self._keep_delivered(self._poll_until_end())
        finally:
            self._launch.stop()
            self._logs.trim()

    def _keep_delivered(self, outcome: TrialOutcome) -> TrialOutcome:
        """Keep the results of a measured trial if every rank had delivered them before it failed."""
        delivered = (
            partial_result_file(self._folder, rank).is_file() or self._has_delivered(rank)
            for rank in self._ranks
        )
        if outcome.status in _FINAL_STATUSES or not all(delivered):
            return outcome
        return replace(outcome, status=Status.MEASURED, reason=f"incomplete: {outcome.reason}")

    def _poll_until_end(self) -> TrialOutcome:
        while True:
            self._poll(_POLL_S)
            if self._stop.stop_now:
                return TrialOutcome(Status.CANCELLED, "stopped by a signal")
            if any(self._failed(rank) for rank in self._ranks):
                return self._failure_outcome()
            if len(self._exits) == len(self._ranks):
                return TrialOutcome(Status.MEASURED, "")
            if self._lost_error:
                return self._lost_outcome(self._lost_error)
            if late := self._check_limits():
                return late

    def _poll(self, seconds: float) -> None:
        """Collect exited ranks, waiting up to *seconds* for the first; truncate growing logs."""
        try:
            for rank_exit in self._launch.wait(seconds):
                self._exits[rank_exit.rank] = rank_exit
        except LaunchError as error:
            self._lost_error = error
        self._logs.trim()

    def _lost_outcome(self, lost: LaunchError) -> TrialOutcome:
        """Outcome of a trial that lost its agents or its fork server; kept if all ranks had delivered."""
        if all(map(self._has_delivered, self._ranks)):
            return TrialOutcome(Status.MEASURED, "")
        killed = was_oom_killed(lost.memory)
        reason = f"{lost}: {sigkill_text(lost.memory)}" if killed else str(lost)
        status = Status.OOM_HOST if killed else Status.CRASHED
        phase = NODE_LOST_PHASE if isinstance(lost, NodeLostError) else self._position_text(0)
        return TrialOutcome(status, reason, self._make_failure(None, phase, ""))

    def _has_delivered(self, rank: int) -> bool:
        return result_file(self._folder, rank).is_file()

    def _failed(self, rank: int) -> bool:
        gone = rank in self._exits and not self._has_delivered(rank)
        return gone or error_file(self._folder, rank).is_file()

    def _failure_outcome(self) -> TrialOutcome:
        """Wait for the other ranks to report, then name the rank that failed first."""
        end = time.monotonic() + _GRACE_S
        while (
            len(self._exits) < len(self._ranks)
            and (left := end - time.monotonic()) > 0
            and not self._lost_error
        ):
            self._poll(left)
        failures = [failure for rank in self._ranks if (failure := self._rank_failure(rank))]
        causes = [failure for failure in failures if not failure.is_secondary]
        if self._lost_error and not causes:
            # other ranks report the connections broken by it, sometimes before it is known here
            return self._lost_outcome(self._lost_error)
        first = min(causes or failures, key=lambda failure: failure.at)
        summary = self._make_failure(first.rank, first.phase, first.error.traceback if first.error else "")
        return TrialOutcome(first.status, first.reason, replace(summary, user_error=first.user_error))

    def _rank_failure(self, rank: int) -> RankFailure | None:
        """Failure of *rank*; None if it has not failed."""
        if error := RankError.read(self._folder, rank):
            return RankFailure(rank, error.at, error.phase, error)
        if rank not in self._exits or self._has_delivered(rank):
            return None
        rank_exit, uncaught = self._exits[rank], ""
        if rank_exit.code == -signal.SIGABRT:
            uncaught = uncaught_text(read_tail(log_file(self._folder, rank), _ABORT_TAIL))
        return RankFailure(rank, rank_exit.at, self._position_text(rank), exit=rank_exit, uncaught=uncaught)

    def _check_limits(self) -> TrialOutcome | None:
        if all(map(self._has_delivered, self._ranks)):
            # no measurement is missing, so a hang at the exit is simply ended
            is_over = all(self._time_since_progress(rank)[1] > self._exit_grace_s for rank in self._ranks)
            return TrialOutcome(Status.MEASURED, "") if is_over else None
        if time.monotonic() - self._began > self._limits.trial:
            return self._limit_outcome(Status.HANG, "trial", self._limits.trial)
        for rank in self._ranks:
            phase, silent_s = self._time_since_progress(rank)
            key = phase if phase in _SETUP_PHASES else self._kind.step_limit_key
            limit = getattr(self._limits, key)
            if rank not in self._exits and not self._has_delivered(rank) and silent_s > limit:
                return self._limit_outcome(Status.INIT_TIMEOUT if phase == key else Status.HANG, key, limit)
        return None

    def _time_since_progress(self, rank: int) -> tuple[str, float]:
        """Phase of *rank*, and the seconds since its last sign of progress was seen."""
        sign, now = read_progress(progress_file(self._folder, rank)), time.monotonic()
        if sign != self._last_progress[rank][0]:
            self._last_progress[rank] = sign, now
        return (sign or ProgressMark()).phase, now - self._last_progress[rank][1]

    def _limit_outcome(self, status: Status, key: str, limit: float) -> TrialOutcome:
        if silent := self._launch.silent_node():
            # ranks that wait for a lost node reach their limits before the node is given up
            reason = f"{silent}; limits.{key} = {format_duration(limit)} was exceeded meanwhile"
            return TrialOutcome(Status.CRASHED, reason, self._make_failure(None, NODE_LOST_PHASE, ""))
        before = self._launch.process_states()
        self._launch.signal(signal.SIGUSR1)
        # the ranks themselves write their stacks
        self._poll(_STACK_DUMP_S)
        self._launch.fetch_logs()
        logs = {rank: read_tail(log_file(self._folder, rank), _STACK_TAIL) for rank in self._ranks}
        blamed = self._find_suspect(before, self._launch.process_states(), logs)
        where = ", ".join(f"rank {r} at {self._position_text(r)}" for r in self._ranks)
        reason = f"exceeded limits.{key} = {format_duration(limit)} ({where})"
        if blamed and blamed.evidence:
            reason += f"; rank {blamed.rank} {blamed.evidence}"
        elif places := hang_diagnosis.waits_text(logs) if self._blame_by_stack else "":
            reason += f"; {places}"
        rank = blamed.rank if blamed else None
        phase = self._position_text(rank) if rank is not None else key
        return TrialOutcome(status, reason, self._make_failure(rank, phase, ""))

    def _find_suspect(
        self, before: Mapping[int, str], after: Mapping[int, str], logs: Mapping[int, str]
    ) -> HangSuspect | None:
        """Find the blocking rank by the states of all processes and the stacks in the logs."""
        slowest = self._rank_behind()
        return (
            hang_diagnosis.stopped_rank(before, after, "Tt")
            or (HangSuspect(slowest, "") if slowest is not None else None)
            or hang_diagnosis.stopped_rank(before, after, "D")
            or (hang_diagnosis.rank_outside_collective(logs) if self._blame_by_stack else None)
        )

    def _rank_behind(self) -> int | None:
        """The rank that is furthest behind; None if all are at the same step."""
        progress = {rank: read_progress(progress_file(self._folder, rank)) for rank in self._ranks}
        order = (*_SETUP_PHASES, *self._kind.phases, "done")
        # a plug-in may have phases that it does not declare
        numbers = {phase: number for number, phase in enumerate(order)}
        places = {r: (numbers.get(p.phase, 0), p.step) if p else (-1, 0) for r, p in progress.items()}
        behind = min(places.values())
        slow = [rank for rank, place in places.items() if place == behind]
        return slow[0] if len(slow) < len(places) else None

    def _position_text(self, rank: int) -> str:
        sign = read_progress(progress_file(self._folder, rank)) or ProgressMark()
        return f"{sign.phase} {sign.step}" if sign.phase in self._kind.phases else sign.phase

    def _make_failure(self, rank: int | None, phase: str, traceback: str) -> Failure:
        self._launch.fetch_logs()
        # if no rank can be blamed, the stacks of all are the evidence
        logs = {r: log_excerpt(log_file(self._folder, r)) for r in (self._ranks if rank is None else [rank])}
        log = "\n".join(text if len(logs) == 1 else f"--- rank {r}\n{text}" for r, text in logs.items())
        steps = {str(r): self._position_text(r) for r in self._ranks}
        return Failure(rank=rank, phase=phase.split()[0], traceback=traceback, log=log, steps=steps)
