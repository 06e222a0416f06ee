"""Progress of a run, from what is seen of it to what is shown and stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from distbench.cli.display import displayed
from distbench.core.job import MEASURE, job_kind
from distbench.plan import PlannedTrial
from distbench.record import Record, Status, round_text
from distbench.record.progress import Event, Journal
from distbench.run import Observer


class Told(Observer):
    """Makes events of what it observes."""

    def __init__(self, *tell: Callable[[Event], None], forewarning: Callable[[], str] | None = None) -> None:
        self._tell, self._forewarning = tell, forewarning
        self._told: set[str] = set()
        """Errors in which many trials may end, and that are told once."""

    def note(self, text: str) -> None:
        """Tell the note."""
        self._event(Event("note", text))

    def item_started(self, item: str, done: int, total: int) -> None:
        """Tell what is built."""
        self._event(Event("item_started", item, done, total))

    def item_ended(self, item: str, done: int, total: int, seconds: float, *, failed: bool) -> None:
        """Tell that it is built, or could not be."""
        self._event(Event("item_ended", item, done, total, seconds, failed=failed))

    def trial_started(self, task: PlannedTrial, done: int, total: int, remaining_s: float | None) -> None:
        """Tell the case and the time left; before the first trial, what may spoil it."""
        if self._forewarning and (warning := self._forewarning()):
            self.note(warning)
        self._forewarning = None
        self._event(Event("trial_started", _what(task), done, total, remaining_s))

    def trial_ended(self, record: Record) -> None:
        """Tell how it ended."""
        self._event(
            Event(
                "trial_ended",
                _what(record),
                seconds=record.wall_s,
                status=str(record.status),
                reason=self._reason(record),
                noise=record.degraded,
                failed=record.status.is_failure,
            )
        )

    def _reason(self, record: Record) -> str:
        """Why *record* has failed, in full for the first of those that ended alike."""
        error = record.failure.user_error if record.failure else ""
        if record.status in (Status.PREPARE_FAILED, Status.UNSUPPORTED) and not error:
            error = record.reason
        if not error or error not in self._told:
            self._told.add(error)
            return record.reason
        place, colon, _ = error.partition(": ")
        return record.reason.replace(error, f"{place}, as before" if colon else "as before")

    def _event(self, event: Event) -> None:
        for tell in self._tell:
            tell(event)


def _what(trial: PlannedTrial | Record) -> str:
    if trial.job.kind == MEASURE or not job_kind(trial.job.kind).trains:
        return f"{trial.case.name} {round_text(trial.round)}"
    return f"{trial.job.kind} {trial.case.name} ({trial.case.optimizer.name})"


@contextmanager
def observer(
    *, quiet: bool, journal: Journal | None = None, forewarning: Callable[[], str] | None = None
) -> Iterator[Observer]:
    """Progress display for this terminal, removed from it at the end; it goes to *journal*, too.

    Args:
        forewarning: Asked before the first trial for what may spoil the trials; empty: nothing.
    """
    with displayed(quiet=quiet) as display:
        yield Told(display.show, *([journal.write] if journal else []), forewarning=forewarning)
