"""Progress of a run: a live line on a terminal, else one line for each trial that has ended."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING

import typer

from distbench.analysis.text import plain
from distbench.plan import Task
from distbench.record import Record, round_text
from distbench.units import duration_text

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class Silent:
    """Says nothing."""

    def __enter__(self) -> Silent:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the progress off the screen."""

    def note(self, text: str) -> None:
        """Say something about the run as a whole."""

    def trial_started(self, task: Task, done: int, total: int, remaining_s: float | None) -> None:
        """Say that a trial begins, with *done* of *total* behind it."""

    def trial_ended(self, record: Record) -> None:
        """Say how a trial ended."""


class Lines(Silent):
    """One plain line on stderr for each trial that has ended."""

    def __init__(self) -> None:
        self._done, self._total = 0, 0
        self._remaining: float | None = None

    def note(self, text: str) -> None:
        """Print the note."""
        self._line(text)

    def trial_started(self, task: Task, done: int, total: int, remaining_s: float | None) -> None:
        """Remember where the run stands."""
        self._done, self._total, self._remaining = done, total, remaining_s

    def trial_ended(self, record: Record) -> None:
        """Print how the trial ended."""
        reason = f" ({record.reason})" if record.reason else ""
        # the estimate was made before this trial
        remaining = (self._remaining or 0.0) - record.wall_s
        is_known = remaining > 0 and self._done + 1 < self._total
        left = f", about {duration_text(remaining)} left" if is_known else ""
        self._line(
            f"[{self._done + 1}/{self._total}] {_what(record)}: "
            f"{record.status}{reason}, {duration_text(record.wall_s)}{left}"
        )

    def _line(self, text: str) -> None:
        typer.echo(plain(" ".join(text.split())), err=True)


class Live(Silent):
    """A line that shows the current case, what is done, and the time left."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self._progress: Progress = Progress(
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}", markup=False),
            TextColumn("{task.description}", markup=False),
            console=Console(stderr=True, markup=False, highlight=False, emoji=False),
            transient=True,
            # rich's ten times a second would take CPU time from the ranks that are being timed
            refresh_per_second=1,
        )
        self._task: TaskID = self._progress.add_task("preparing", total=None, left="")

    def __enter__(self) -> Live:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the line off the screen."""
        self._progress.stop()

    def note(self, text: str) -> None:
        """Print the note above the line."""
        self._progress.console.print(plain(text))

    def trial_started(self, task: Task, done: int, total: int, remaining_s: float | None) -> None:
        """Show the case and the time left."""
        left = f"{duration_text(remaining_s)} left" if remaining_s is not None else ""
        self._progress.update(
            self._task, description=plain(_what(task)), completed=done, total=total, left=left
        )

    def trial_ended(self, record: Record) -> None:
        """Count it; print it if it failed."""
        self._progress.advance(self._task)
        if record.status.is_failure:
            self._progress.console.print(plain(f"{_what(record)}: {record.status}: {record.reason}"))


def _what(trial: Task | Record) -> str:
    if trial.job.kind == "measure":
        return f"{trial.case.name} {round_text(trial.round)}"
    return f"{trial.job.kind} {trial.case.name} ({trial.case.optimizer.name})"


def observer(*, quiet: bool) -> Silent:
    """Return what shows the progress of a run here."""
    if quiet:
        return Silent()
    return Live() if sys.stderr.isatty() else Lines()
