"""Progress of a run: a live line on a terminal, otherwise one line per finished trial."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from distbench.analysis.text import plain
from distbench.job import MEASURE
from distbench.plan import Task
from distbench.record import Record, round_text
from distbench.run import Observer
from distbench.units import duration_text

_WORTH_A_LINE_S = 1.0
"""Seconds from which on something that was built gets a line: most of it is there already."""


class Lines(Observer):
    """One plain line on stderr per finished trial."""

    def __init__(self) -> None:
        self._done, self._total = 0, 0
        self._remaining: float | None = None

    def note(self, text: str) -> None:
        """Print the note."""
        self._line(text)

    def item_ended(self, item: str, done: int, total: int, seconds: float, *, failed: bool) -> None:
        """Print what failed, and what took its time."""
        if failed or seconds >= _WORTH_A_LINE_S:
            self._line(f"[{done + 1}/{total}] {_built(item, seconds, failed=failed)}")

    def trial_started(self, task: Task, done: int, total: int, remaining_s: float | None) -> None:
        """Keep the position for the line of this trial."""
        self._done, self._total, self._remaining = done, total, remaining_s

    def trial_ended(self, record: Record) -> None:
        """Print how the trial ended."""
        reason = f" ({record.reason})" if record.reason else ""
        # the estimate includes this trial
        remaining = (self._remaining or 0.0) - record.wall_s
        is_known = remaining > 0 and self._done + 1 < self._total
        left = f", about {duration_text(remaining)} left" if is_known else ""
        self._line(
            f"[{self._done + 1}/{self._total}] {_what(record)}: "
            f"{record.status}{reason}, {duration_text(record.wall_s)}{left}"
        )

    def _line(self, text: str) -> None:
        typer.echo(plain(" ".join(text.split())), err=True)


class Live(Observer):
    """A line with the current case, the number of finished trials, and the time left."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self.progress = Progress(
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}", markup=False),
            TextColumn("{task.description}", markup=False),
            console=Console(stderr=True, markup=False, highlight=False, emoji=False),
            transient=True,
            # rich's default, ten per second, takes CPU time from the ranks being timed
            refresh_per_second=1,
        )
        """On the screen while this is entered."""
        self._task = self.progress.add_task("preparing", total=None, left="")

    def note(self, text: str) -> None:
        """Print the note above the line."""
        self._print(text)

    def item_started(self, item: str, done: int, total: int) -> None:
        """Show what is built."""
        self.progress.update(self._task, description=plain(item), completed=done, total=total)

    def item_ended(self, item: str, done: int, total: int, seconds: float, *, failed: bool) -> None:
        """Count it; print what failed, and what took its time."""
        self.progress.update(self._task, completed=done + 1)
        if failed or seconds >= _WORTH_A_LINE_S:
            self.progress.console.print(plain(_built(item, seconds, failed=failed)))

    def trial_started(self, task: Task, done: int, total: int, remaining_s: float | None) -> None:
        """Show the case and the time left."""
        left = f"{duration_text(remaining_s)} left" if remaining_s is not None else ""
        self.progress.update(
            self._task, description=plain(_what(task)), completed=done, total=total, left=left
        )

    def trial_ended(self, record: Record) -> None:
        """Count the trial; print it if it failed."""
        self.progress.advance(self._task)
        if record.status.is_failure:
            self._print(f"{_what(record)}: {record.status}: {record.reason}")

    def _print(self, text: str) -> None:
        # the terminal wraps it; what rich wraps can't be pasted as a command
        self.progress.console.print(plain(text), soft_wrap=True)


def _built(item: str, seconds: float, *, failed: bool) -> str:
    took = f", {duration_text(seconds)}" if seconds >= _WORTH_A_LINE_S else ""
    return f"{item}: {'failed' if failed else 'ready'}{took}"


def _what(trial: Task | Record) -> str:
    if trial.job.kind == MEASURE:
        return f"{trial.case.name} {round_text(trial.round)}"
    return f"{trial.job.kind} {trial.case.name} ({trial.case.optimizer.name})"


@contextmanager
def observer(*, quiet: bool) -> Iterator[Observer]:
    """Progress display for this terminal, removed from it at the end."""
    if quiet or not sys.stderr.isatty():
        yield Observer() if quiet else Lines()
        return
    live = Live()
    with live.progress:
        yield live
