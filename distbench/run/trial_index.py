"""Index the trials of a run: done, failed, pending."""

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
"""Outcomes that say more about the machine at that time than about the case: such trials are repeated
unasked.
"""


@dataclass(frozen=True)
class _TrialState:
    """Outcome of a trial."""

    status: Status
    reason: str
    lost_node: bool
    attempts: list[Attempt]
    """Its failed launches, this one included."""


class TrialIndex:
    """Trials of one run, from this session and earlier ones."""

    def __init__(self, run: Run, *, retry_failed: bool = False) -> None:
        """Read what earlier sessions have left in the folder of *run*.

        Args:
            retry_failed: Repeat all trials that failed, not only those that failed because of the machine.
        """
        self._run, self._retry_failed = run, retry_failed
        self._states: dict[tuple[str, str, str, int], _TrialState] = {}
        self._references: dict[str, str] = {}
        """Case id of a reference -> reason why it has no result; empty if it has one."""
        contents = run.contents()
        self.damaged: dict[Path, DamagedTrial] = {
            run.folder / trial.trial: trial for trial in contents.damaged
        }
        """Folder of a trial that can't be read, and that is not repeated -> its damage."""
        for record in contents.records:
            self.add(record)

    def add(self, record: Record) -> None:
        """Add the outcome of a trial."""
        lost = record.failure is not None and record.failure.phase == NODE_LOST_PHASE
        self._states[record.key] = _TrialState(
            record.status, record.reason, lost, record.attempts_including_this
        )
        provided = record.job.provided_reference
        if provided and self._references.get(provided) != "":
            # the message of the user's model is shown where it failed
            place = record.failure.user_place if record.failure else ""
            self._references[provided] = place or record.reason

    def status(self, task: PlannedTrial) -> Status | None:
        """Status of *task*; None if it has not run, or can't be read."""
        entry = self._states.get(task.key)
        return entry.status if entry else None

    def stored_record(self, task: PlannedTrial) -> Record | None:
        """Record of *task* from an earlier session; None if it is pending or damaged.

        Raises:
            RecordError: it can't be read any more.
        """
        if self.status(task) is None or self._is_pending(task):
            return None
        return self._run.record(task.case, task.round, task.job.kind)

    def pending(self, tasks: Sequence[PlannedTrial]) -> list[PlannedTrial]:
        """Return those of *tasks* that have to run, or whose output file for such a task is gone.

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
        """Reason why the reference of *task* has no result; empty if it has one, or none is needed."""
        return self._references.get(task.depends_on, "not run yet") if task.depends_on else ""

    def mark_damaged_references(self, tasks: Sequence[PlannedTrial]) -> None:
        """Mark references among *tasks* that are damaged, so that dependent trials can report it."""
        for task in tasks:
            if task.job.provided_reference and self._folder(task) in self.damaged:
                self._references.setdefault(task.job.provided_reference, "the trial is damaged")

    def attempts(self, task: PlannedTrial) -> list[Attempt]:
        """Earlier launches of *task* that failed, for the record of the next one."""
        entry = self._states.get(task.key)
        return entry.attempts if entry else []

    def has_failed(self, task: PlannedTrial) -> bool:
        """True if the last launch of *task* failed."""
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
