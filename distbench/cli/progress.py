"""Turn observations of a run into progress events, to be shown and stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from distbench.cli.display import progress_display
from distbench.core.job import MEASURE, job_kind
from distbench.plan import PlannedTrial
from distbench.record import Record, Status, round_text
from distbench.record.progress import ProgressEvent, ProgressLog
from distbench.run import Observer


class EventObserver(Observer):
    """Observer that turns observations into events."""

    def __init__(
        self, *tell: Callable[[ProgressEvent], None], contention_warning: Callable[[], str] | None = None
    ) -> None:
        self._handlers, self._contention_warning = tell, contention_warning
        self._reported_errors: set[str] = set()
        """Errors in which many trials may end, and that are shown once."""

    def note(self, text: str) -> None:
        """Emit the note."""
        self._emit(ProgressEvent("note", text))

    def build_started(self, item: str, done: int, total: int) -> None:
        """Emit the start of a build."""
        self._emit(ProgressEvent("item_started", item, done, total))

    def build_ended(self, item: str, done: int, total: int, seconds: float, *, failed: bool) -> None:
        """Emit the end of a build, or its failure."""
        self._emit(ProgressEvent("item_ended", item, done, total, seconds, failed=failed))

    def trial_started(self, task: PlannedTrial, done: int, total: int, remaining_s: float | None) -> None:
        """Emit the case and the time left; before the first trial, a warning about contention."""
        if self._contention_warning and (warning := self._contention_warning()):
            self.note(warning)
        self._contention_warning = None
        self._emit(ProgressEvent("trial_started", _trial_name(task), done, total, remaining_s))

    def trial_ended(self, record: Record) -> None:
        """Emit the outcome of a trial."""
        self._emit(
            ProgressEvent(
                "trial_ended",
                _trial_name(record),
                seconds=record.wall_s,
                status=str(record.status),
                reason=self._short_reason(record),
                noise=record.degraded,
                failed=record.status.is_failure,
            )
        )

    def _short_reason(self, record: Record) -> str:
        """Reason of the failure of *record*, in full for the first of those that ended alike."""
        error = record.failure.user_error if record.failure else ""
        if record.status in (Status.PREPARE_FAILED, Status.UNSUPPORTED) and not error:
            error = record.reason
        if not error or error not in self._reported_errors:
            self._reported_errors.add(error)
            return record.reason
        place, colon, _ = error.partition(": ")
        return record.reason.replace(error, f"{place}, as before" if colon else "as before")

    def _emit(self, event: ProgressEvent) -> None:
        for tell in self._handlers:
            tell(event)


def _trial_name(trial: PlannedTrial | Record) -> str:
    if trial.job.kind == MEASURE or not job_kind(trial.job.kind).trains_model:
        return f"{trial.case.name} {round_text(trial.round)}"
    return f"{trial.job.kind} {trial.case.name} ({trial.case.optimizer.name})"


@contextmanager
def observe_progress(
    *, quiet: bool, journal: ProgressLog | None = None, contention_warning: Callable[[], str] | None = None
) -> Iterator[Observer]:
    """Progress display for this terminal, removed from it at the end; events also go to *journal*.

    Args:
        contention_warning: Called before the first trial for a warning; empty: none.
    """
    with progress_display(quiet=quiet) as display:
        yield EventObserver(
            display.show, *([journal.write] if journal else []), contention_warning=contention_warning
        )
