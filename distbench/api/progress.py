"""Progress of a run: observations as events, shown on a terminal, in a log or in a notebook."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from distbench.core.job import MEASURE, job_kind
from distbench.core.text import one_line, strip_control_characters, supports_colour
from distbench.core.units import format_duration
from distbench.plan import PlannedTrial
from distbench.record import Record, Status, round_text
from distbench.record.progress import ProgressEvent, ProgressLog
from distbench.run import Observer

_MAX_NOTEBOOK_LINES = 8
"""Maximum number of notes and failures in a notebook; all are in the run's ``progress.jsonl``."""
_MIN_REPORTED_BUILD_S = 1.0
"""Seconds from which on a finished build gets a line: most items are cached."""


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


class ProgressDisplay:
    """Shows the progress of a run; this one shows nothing."""

    def show(self, event: ProgressEvent) -> None:
        """Show *event*."""

    def show_waiting(self, text: str) -> None:
        """Show the reason for waiting; repeated only if it has changed."""


class LineProgress(ProgressDisplay):
    """One plain line on stderr per finished trial."""

    def __init__(self) -> None:
        self._done, self._total = 0, 0
        self._remaining: float | None = None
        self._awaited = ""

    def show_waiting(self, text: str) -> None:
        """Print *text* if it is new."""
        if text != self._awaited:
            self._awaited = text
            self._line(text)

    def show(self, event: ProgressEvent) -> None:
        """Print notes, failures, slow builds, and the outcome of each trial."""
        if event.kind == "note":
            self._line(event.text)
        elif event.kind == "item_ended" and _is_notable(event):
            self._line(f"[{event.done + 1}/{event.total}] {_build_text(event)}")
        elif event.kind == "trial_started":
            # kept for the line of this trial
            self._done, self._total, self._remaining = event.done, event.total, event.seconds
        elif event.kind == "trial_ended":
            self._trial_ended(event)

    def _trial_ended(self, event: ProgressEvent) -> None:
        took = event.seconds or 0.0
        # the estimate includes this trial
        remaining = (self._remaining or 0.0) - took
        is_known = remaining > 0 and self._done + 1 < self._total
        left = f", about {format_duration(remaining)} left" if is_known else ""
        self._line(f"[{self._done + 1}/{self._total}] {_trial_text(event)}, {format_duration(took)}{left}")

    def _line(self, text: str) -> None:
        print(strip_control_characters(" ".join(text.split())), file=sys.stderr, flush=True)  # noqa: T201


class LiveProgress(ProgressDisplay):
    """A line with the current case, the number of finished trials, and the time left."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._is_coloured = supports_colour(sys.stderr)
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

    def show_waiting(self, text: str) -> None:
        """Show *text* in the place of the case."""
        self.progress.update(self._task, description=strip_control_characters(text))

    def show(self, event: ProgressEvent) -> None:
        """Show the case and the time left; print notes and failures."""
        if event.kind == "note":
            # above the line
            self._print(event.text)
        elif event.kind in ("item_started", "trial_started"):
            left = f"{format_duration(event.seconds)} left" if event.seconds is not None else ""
            verb = "preparing: " if event.kind == "item_started" else ""
            self._move_to(
                event.done,
                event.total,
                description=f"{verb}{strip_control_characters(event.text)}",
                left=left,
            )
        elif event.kind == "item_ended":
            self._move_to(event.done + 1, event.total)
            if _is_notable(event):
                self.progress.console.print(strip_control_characters(_build_text(event)))
        elif event.kind == "trial_ended":
            self.progress.advance(self._task)
            if event.failed or event.noise or (event.status == "measured" and event.reason):
                self._print(_trial_text(event), style="red" if event.failed else "yellow")

    def _move_to(self, done: int, total: int, **fields: Any) -> None:
        # a phase has ended: the clock goes on
        self.progress.tasks[0].finished_time = None
        self.progress.update(self._task, completed=done, total=total, count=f"{done}/{total}", **fields)

    def _print(self, text: str, *, style: str = "") -> None:
        # the terminal wraps it; a command that rich wraps can't be pasted
        self.progress.console.print(
            strip_control_characters(text), soft_wrap=True, style=style if self._is_coloured else ""
        )


class NotebookProgress(ProgressDisplay):
    """The current case and the time left in one line, below the latest notes and failures."""

    def __init__(self) -> None:
        display = importlib.import_module("IPython.display").display
        self._lines: list[str] = []
        self._done, self._total = 0, 0
        self._handle: Any = display(self._bundle("starting"), raw=True, display_id=True)

    def show(self, event: ProgressEvent) -> None:
        """Replace the line; keep notes, failures and slow builds above it."""
        if event.kind == "note":
            self._add(event.text)
        elif event.kind in ("item_started", "trial_started"):
            self._done, self._total = event.done, event.total
            left = f", about {format_duration(event.seconds)} left" if event.seconds is not None else ""
            verb = "preparing " if event.kind == "item_started" else ""
            self._update(f"{verb}{event.text}{left}")
        elif event.kind == "item_ended":
            self._done = event.done + 1
            self._add(_build_text(event) if _is_notable(event) else "")
        elif event.kind == "trial_ended":
            self._done += 1
            self._add(_trial_text(event) if event.failed or event.noise else "")

    def show_waiting(self, text: str) -> None:
        """Show *text* in the place of the case."""
        self._update(text)

    def _add(self, line: str) -> None:
        self._lines += [one_line(line)] if line else []
        self._update("")

    def _update(self, text: str) -> None:
        self._handle.update(self._bundle(text), raw=True)

    def _bundle(self, text: str) -> dict[str, str]:
        count = f"{self._done}/{self._total}" if self._total else ""
        left_out = len(self._lines) - _MAX_NOTEBOOK_LINES
        more = [f"({left_out} earlier lines are in progress.jsonl)"] if left_out > 0 else []
        current = " ".join(filter(None, (count, one_line(text))))
        return {"text/plain": "\n".join([*more, *self._lines[-_MAX_NOTEBOOK_LINES:], current])}


def _trial_text(trial: ProgressEvent) -> str:
    """Outcome of a trial: ``measured``, ``measured, noisy (others ...)``, ``crashed (rank 1 ...)``."""
    word = f"{trial.status}, noisy" if trial.noise else trial.status
    why = trial.noise or trial.reason
    return f"{trial.text}: {word}{f' ({why})' if why else ''}"


def _is_notable(item: ProgressEvent) -> bool:
    return item.failed or (item.seconds or 0.0) >= _MIN_REPORTED_BUILD_S


def _build_text(item: ProgressEvent) -> str:
    seconds = item.seconds or 0.0
    took = f", {format_duration(seconds)}" if seconds >= _MIN_REPORTED_BUILD_S else ""
    return f"{item.text}: {'failed' if item.failed else 'ready'}{took}"


@contextmanager
def progress_display(*, quiet: bool) -> Iterator[ProgressDisplay]:
    """Display for this terminal, removed from it at the end, or for this notebook."""
    if not quiet and _in_notebook():
        yield NotebookProgress()
        return
    if quiet or not sys.stderr.isatty():
        yield ProgressDisplay() if quiet else LineProgress()
        return
    live = LiveProgress()
    with live.progress:
        yield live


def _in_notebook() -> bool:
    """True if this process is the kernel of a notebook."""
    # imported there already, and not installed elsewhere
    interactive = sys.modules.get("IPython")
    shell = interactive.get_ipython() if interactive else None
    return hasattr(shell, "kernel")
