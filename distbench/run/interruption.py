"""Stop requests, progress observers and the estimate of remaining time."""

from __future__ import annotations

import os
import signal
import stat
import statistics
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

from distbench.core.grouping import group_pairs
from distbench.plan import PlannedTrial
from distbench.record import Record

K = TypeVar("K", bound=Hashable)

StopReason = Literal["", "signal", "time"]
"""Cause of an early stop: a signal, or the time limit of the job; empty: none."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopRequest:
    """Request to stop the run.

    A first Ctrl-C, SIGTERM or SIGHUP requests a stop; a second Ctrl-C or SIGTERM kills. When a terminal
    closes, the kernel and the shell both send SIGHUP, so a second one means nothing more. SIGUSR1, which
    Slurm sends before a time limit (``sbatch --signal``), requests that nothing more is started.
    """

    def __init__(self) -> None:
        self.stop_now = False
        """True to stop the current trial."""
        self.no_new_trials = False
        """True to start no more trials."""

    @property
    def is_set(self) -> bool:
        """True if the run stops early."""
        return bool(self.reason)

    @property
    def reason(self) -> StopReason:
        """Reason for the early stop; empty if there is none."""
        if self.stop_now:
            return "signal"
        return "time" if self.no_new_trials else ""

    @contextmanager
    def handle_signals(self) -> Iterator[StopRequest]:
        """Handle SIGINT, SIGTERM, SIGUSR1 and, unless ``nohup`` ignores it, SIGHUP while the body runs.

        Raises:
            KeyboardInterrupt: the second signal.
        """
        with _signal_handlers(self._on_signal, *_SIGNALS, signal.SIGUSR1):
            yield self

    @contextmanager
    def handle_time_warning(self) -> Iterator[StopRequest]:
        """Handle only SIGUSR1 while the body runs; unhandled, it ends the process."""
        with _signal_handlers(self._on_signal, signal.SIGUSR1):
            yield self

    def _on_signal(self, number: int, frame: Any) -> None:
        if number == signal.SIGUSR1:
            self.no_new_trials = True
            return
        if number == signal.SIGHUP:
            _detach_closed_terminal()
        elif self.stop_now:
            raise KeyboardInterrupt
        self.stop_now = True


@contextmanager
def ignore_time_warning() -> Iterator[None]:
    """Ignore SIGUSR1 while the body runs; outside of trials it would end the process."""
    with _signal_handlers(lambda *_: None, signal.SIGUSR1):
        yield


@contextmanager
def raise_on_termination() -> Iterator[None]:
    """Let SIGTERM and, unless ``nohup`` ignores it, SIGHUP interrupt the body as Ctrl-C does.

    Raises:
        KeyboardInterrupt: one of them arrived.
    """

    def interrupt(number: int, _: Any) -> None:
        if number == signal.SIGHUP:
            # the second one of a closed terminal
            signal.signal(number, signal.SIG_IGN)
            _detach_closed_terminal()
        raise KeyboardInterrupt

    with _signal_handlers(interrupt, *_SIGNALS):
        yield


@contextmanager
def _signal_handlers(handler: Callable[[int, Any], None], *signals: signal.Signals) -> Iterator[None]:
    """Install *handler* for each of *signals* while the body runs."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    handled = [number for number in signals if not (number == signal.SIGHUP and ignored)]
    before = {number: signal.signal(number, handler) for number in handled}
    try:
        yield
    finally:
        for number, earlier in before.items():
            # None: a handler that is not Python's, which can't be restored
            signal.signal(number, signal.SIG_DFL if earlier is None else earlier)


def _detach_closed_terminal() -> None:
    """Redirect standard output and error to nowhere if their terminal has closed.

    Otherwise, printing would raise an error and end the run before its report is written.
    """
    null = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        # a closed terminal is still a device, but no longer answers as a terminal
        if stat.S_ISCHR(os.fstat(descriptor).st_mode) and not os.isatty(descriptor):
            os.dup2(null, descriptor)
    os.close(null)


class Observer:
    """Observer of a run's progress; this one shows nothing."""

    def note(self, text: str) -> None:
        """Note the start of something slow, or other information for the user."""

    def build_started(self, item: str, done: int, total: int) -> None:
        """Note that *item*, which trials need, is being built; *done* of *total* were built before."""

    def build_ended(self, item: str, done: int, total: int, seconds: float, *, failed: bool) -> None:
        """Note that *item* was built in *seconds*, or that it *failed*."""

    def trial_started(self, task: PlannedTrial, done: int, total: int, remaining_s: float | None) -> None:
        """Note the start of a trial; *remaining_s* is None while there is no basis for an estimate."""

    def trial_ended(self, record: Record) -> None:
        """Note that a trial has ended and its record is on disk."""


class RemainingTime:
    """Estimate of the remaining time from finished trials: those of the same case, or else the mean.

    Trials of other kinds of job don't count; only until the first of its kind has finished is the mean
    of all finished trials used.
    """

    def __init__(self, todo: list[PlannedTrial]) -> None:
        self._todo = [(task.job.kind, task.case.id) for task in todo]
        self._durations: list[tuple[tuple[str, str], float]] = []

    def add(self, task: PlannedTrial, seconds: float) -> None:
        """Add the duration of a trial."""
        self._durations.append(((task.job.kind, task.case.id), seconds))

    def longest(self, task: PlannedTrial) -> float | None:
        """Seconds of the longest trial of *task*'s case so far; None if there is none."""
        own = (task.job.kind, task.case.id)
        return max((seconds for trial, seconds in self._durations if trial == own), default=None)

    def remaining(self, done: int) -> float | None:
        """Estimated seconds of the trials after the first *done*; None if unknown."""
        if not self._durations:
            return None
        means = _means(self._durations)
        of_kinds = _means((kind, mean) for (kind, _), mean in means.items())
        overall = statistics.fmean(means.values())
        return sum(means.get(trial, of_kinds.get(trial[0], overall)) for trial in self._todo[done:])


def _means(pairs: Iterable[tuple[K, float]]) -> dict[K, float]:
    return {key: statistics.fmean(values) for key, values in group_pairs(pairs).items()}
