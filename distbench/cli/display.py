"""Progress of a run on this terminal: a live line, otherwise one line per finished trial."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

from distbench.cli.colour import is_coloured
from distbench.core.text import plain
from distbench.core.units import duration_text
from distbench.record.progress import Event

_WORTH_A_LINE_S = 1.0
"""Seconds from which on something that was built gets a line: most of it is there already."""


class Display:
    """Shows what happens in a run; this one shows nothing."""

    def show(self, event: Event) -> None:
        """Show *event*."""

    def waiting(self, text: str) -> None:
        """Say what is waited for; said again only if it has changed."""


class Lines(Display):
    """One plain line on stderr per finished trial."""

    def __init__(self) -> None:
        self._done, self._total = 0, 0
        self._remaining: float | None = None
        self._awaited = ""

    def waiting(self, text: str) -> None:
        """Print *text* if it is new."""
        if text != self._awaited:
            self._awaited = text
            self._line(text)

    def show(self, event: Event) -> None:
        """Print notes, what failed or took its time, and how each trial ended."""
        if event.kind == "note":
            self._line(event.text)
        elif event.kind == "item_ended" and _is_worth_a_line(event):
            self._line(f"[{event.done + 1}/{event.total}] {_built(event)}")
        elif event.kind == "trial_started":
            # kept for the line of this trial
            self._done, self._total, self._remaining = event.done, event.total, event.seconds
        elif event.kind == "trial_ended":
            self._trial_ended(event)

    def _trial_ended(self, event: Event) -> None:
        took = event.seconds or 0.0
        # the estimate includes this trial
        remaining = (self._remaining or 0.0) - took
        is_known = remaining > 0 and self._done + 1 < self._total
        left = f", about {duration_text(remaining)} left" if is_known else ""
        self._line(f"[{self._done + 1}/{self._total}] {_ended(event)}, {duration_text(took)}{left}")

    def _line(self, text: str) -> None:
        typer.echo(plain(" ".join(text.split())), err=True)


class Live(Display):
    """A line with the current case, the number of finished trials, and the time left."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._is_coloured = is_coloured(sys.stderr)
        self.progress = Progress(
            BarColumn(bar_width=16),
            TextColumn("{task.fields[count]}", markup=False),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}", markup=False),
            TextColumn("{task.description}", markup=False),
            console=Console(
                stderr=True,
                markup=False,
                highlight=False,
                emoji=False,
                no_color=not self._is_coloured,
            ),
            transient=True,
            # rich's default, ten per second, takes CPU time from the ranks being timed
            refresh_per_second=1,
        )
        """On the screen while this is entered."""
        self._task = self.progress.add_task("starting", total=None, count="", left="")

    def waiting(self, text: str) -> None:
        """Show *text* in the place of the case."""
        self.progress.update(self._task, description=plain(text))

    def show(self, event: Event) -> None:
        """Show the case and the time left; print notes and what failed."""
        if event.kind == "note":
            # above the line
            self._print(event.text)
        elif event.kind in ("item_started", "trial_started"):
            left = f"{duration_text(event.seconds)} left" if event.seconds is not None else ""
            verb = "preparing: " if event.kind == "item_started" else ""
            self._at(event.done, event.total, description=f"{verb}{plain(event.text)}", left=left)
        elif event.kind == "item_ended":
            self._at(event.done + 1, event.total)
            if _is_worth_a_line(event):
                self.progress.console.print(plain(_built(event)))
        elif event.kind == "trial_ended":
            self.progress.advance(self._task)
            if event.failed or event.noise or (event.status == "measured" and event.reason):
                self._print(_ended(event), style="red" if event.failed else "yellow")

    def _at(self, done: int, total: int, **fields: Any) -> None:
        # what has ended is a phase: the clock goes on
        self.progress.tasks[0].finished_time = None
        self.progress.update(self._task, completed=done, total=total, count=f"{done}/{total}", **fields)

    def _print(self, text: str, *, style: str = "") -> None:
        # the terminal wraps it; what rich wraps can't be pasted as a command
        self.progress.console.print(plain(text), soft_wrap=True, style=style if self._is_coloured else "")


def _ended(trial: Event) -> str:
    """How a trial ended: ``measured``, ``measured, noisy (others ...)``, ``crashed (rank 1 ...)``."""
    word = f"{trial.status}, noisy" if trial.noise else trial.status
    why = trial.noise or trial.reason
    return f"{trial.text}: {word}{f' ({why})' if why else ''}"


def _is_worth_a_line(item: Event) -> bool:
    return item.failed or (item.seconds or 0.0) >= _WORTH_A_LINE_S


def _built(item: Event) -> str:
    seconds = item.seconds or 0.0
    took = f", {duration_text(seconds)}" if seconds >= _WORTH_A_LINE_S else ""
    return f"{item.text}: {'failed' if item.failed else 'ready'}{took}"


@contextmanager
def displayed(*, quiet: bool) -> Iterator[Display]:
    """Display for this terminal, removed from it at the end."""
    if quiet or not sys.stderr.isatty():
        yield Display() if quiet else Lines()
        return
    live = Live()
    with live.progress:
        yield live
