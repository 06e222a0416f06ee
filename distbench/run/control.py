"""How a run is stopped and followed: requests to stop, observers of its progress, the time it still takes."""

from __future__ import annotations

import signal
import statistics
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from distbench.grouping import gathered
from distbench.plan import Task
from distbench.record import Record

K = TypeVar("K", bound=Hashable)

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Whether the run was asked to stop; a first Ctrl-C or SIGTERM asks, a second kills."""

    def __init__(self) -> None:
        self.asked = False

    @contextmanager
    def listening(self) -> Iterator[StopRequest]:
        """Handle SIGINT and SIGTERM while the body runs.

        Raises:
            KeyboardInterrupt: the second signal.
        """
        before = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: Any) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


class Observer:
    """Observer of a run's progress; this one shows nothing."""

    def note(self, text: str) -> None:
        """Something slow starts, or there is something the user should know."""

    def trial_started(self, task: Task, done: int, total: int, remaining_s: float | None) -> None:
        """A trial starts; *remaining_s* is None while there is no basis for an estimate."""

    def trial_ended(self, record: Record) -> None:
        """A trial has ended and its record is on disk."""


class Pace:
    """Estimates the remaining time from finished trials: those of the same case, or else the mean.

    Trials of other kinds of job don't count; only before the first of its kind has finished is the mean
    of all finished trials used.
    """

    def __init__(self, todo: list[Task]) -> None:
        self._todo = [(task.job.kind, task.case.id) for task in todo]
        self._taken: list[tuple[tuple[str, str], float]] = []

    def took(self, task: Task, seconds: float) -> None:
        """A trial took *seconds*."""
        self._taken.append(((task.job.kind, task.case.id), seconds))

    def remaining(self, done: int) -> float | None:
        """Seconds that the trials after the first *done* should take; None if unknown."""
        if not self._taken:
            return None
        means = _means(self._taken)
        of_kinds = _means((kind, mean) for (kind, _), mean in means.items())
        overall = statistics.fmean(means.values())
        return sum(means.get(trial, of_kinds.get(trial[0], overall)) for trial in self._todo[done:])


def _means(pairs: Iterable[tuple[K, float]]) -> dict[K, float]:
    return {key: statistics.fmean(values) for key, values in gathered(pairs).items()}
