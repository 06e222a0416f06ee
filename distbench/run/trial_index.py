"""What a run has done so far, and which of its trials are still to be made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from distbench.plan import PlannedTrial
from distbench.record import NO_REFERENCE_TEXT, NODE_LOST_PHASE, NOT_LAUNCHED_TEXT, Attempt, Record, Status
from distbench.record.record_reader import DamagedTrial
from distbench.record.run_folder import Run

_UNFINISHED = (None, Status.CANCELLED)
_RETRIED = (Status.PREPARE_FAILED, Status.INIT_TIMEOUT, Status.OOM_HOST)
"""Ends that say more of the machine at that time than of the case: the trial is made again unasked."""


@dataclass(frozen=True)
class _TrialState:
    """How a trial ended."""

    status: Status
    reason: str
    lost_node: bool
    attempts: list[Attempt]
    """Its launches that failed, itself included."""


class TrialIndex:
    """Trials of one run, from this session and earlier ones."""

    def __init__(self, run: Run, *, retry_failed: bool = False) -> None:
        """Read what earlier sessions have left in the folder of *run*.

        Args:
            retry_failed: Make all trials again that failed, not only those that the machine failed.
        """
        self._run, self._retry_failed = run, retry_failed
        self._states: dict[tuple[str, str, str, int], _TrialState] = {}
        self._references: dict[str, str] = {}
        """Case id of a reference -> why it has no result; empty if it has one."""
        contents = run.contents()
        self.damaged: dict[Path, DamagedTrial] = {
            run.folder / trial.trial: trial for trial in contents.damaged
        }
        """Folder of a trial that can't be read, and that is not made again -> why."""
        for record in contents.records:
            self.add(record)

    def add(self, record: Record) -> None:
        """Take in how a trial has ended."""
        lost = record.failure is not None and record.failure.phase == NODE_LOST_PHASE
        self._states[record.key] = _TrialState(
            record.status, record.reason, lost, record.attempts_including_this
        )
        provided = record.job.provided_reference
        if provided and self._references.get(provided) != "":
            # the message of the user's model is told where it failed
            place = record.failure.user_place if record.failure else ""
            self._references[provided] = place or record.reason

    def status(self, task: PlannedTrial) -> Status | None:
        """How *task* has ended; None if it has not run, or can't be read."""
        entry = self._states.get(task.key)
        return entry.status if entry else None

    def stored_record(self, task: PlannedTrial) -> Record | None:
        """Record of *task* from an earlier session; None if it is still to be made, or damaged.

        Raises:
            RecordError: it can't be read any more.
        """
        if self.status(task) is None or self._is_pending(task):
            return None
        return self._run.record(task.case, task.round, task.job.kind)

    def pending(self, tasks: Sequence[PlannedTrial]) -> list[PlannedTrial]:
        """Those *tasks* that are still to be made, or whose file for such a one is gone.

        These are the ones that have not run, were interrupted, or failed because of the machine (with
        ``retry_failed``: for whatever reason), and those whose reference had no result and may have one now.
        """
        again = {
            task.job.provided_reference
            for task in tasks
            if task.job.provided_reference and self._is_pending(task)
        }
        again |= {case_id for case_id, reason in self._references.items() if not reason}
        todo: list[PlannedTrial] = []
        wanted: set[str] = set()
        for task in reversed(tasks):
            lacked = task.depends_on in again and self._was_skipped_for_reference(task)
            if self._is_pending(task) or lacked or task.output_file in wanted:
                todo.append(task)
                wanted |= {task.input_file} - {""}
        return todo[::-1]

    def missing_reference(self, task: PlannedTrial) -> str:
        """Why what *task* is compared with has no result; empty if it has one, or needs none."""
        return self._references.get(task.depends_on, "not run yet") if task.depends_on else ""

    def mark_damaged_references(self, tasks: Sequence[PlannedTrial]) -> None:
        """Take in which of *tasks* are damaged: those compared with them then say so."""
        for task in tasks:
            if task.job.provided_reference and self._folder(task) in self.damaged:
                self._references.setdefault(task.job.provided_reference, "its trial is damaged")

    def attempts(self, task: PlannedTrial) -> list[Attempt]:
        """Earlier launches of *task* that failed, for the record of the next one."""
        entry = self._states.get(task.key)
        return entry.attempts if entry else []

    def has_failed(self, task: PlannedTrial) -> bool:
        """Whether the last launch of *task* failed."""
        status = self.status(task)
        return status is not None and status.is_failure and status is not Status.CANCELLED

    def _is_pending(self, task: PlannedTrial) -> bool:
        status = self.status(task)
        if status in _UNFINISHED:
            return self._folder(task) not in self.damaged
        if status is Status.OOM_HOST and not self._retry_failed:
            # a smaller case has run in its place
            return all(self.status(other) in _UNFINISHED for other in islice(task.candidates(), 1, None))
        if status is Status.UNSUPPORTED and self._states[task.key].reason.startswith(NOT_LAUNCHED_TEXT):
            return True
        if status in _RETRIED or self._states[task.key].lost_node:
            return True
        return self._retry_failed and status.is_failure

    def _was_skipped_for_reference(self, task: PlannedTrial) -> bool:
        entry = self._states.get(task.key)
        if entry is None or entry.status is not Status.UNSUPPORTED:
            return False
        return entry.reason.startswith(NO_REFERENCE_TEXT)

    def _folder(self, task: PlannedTrial) -> Path:
        return self._run.trial_folder(task.case, task.round, task.job.kind)
