"""How a run is stopped and followed: requests to stop, observers of its progress, the time it still takes."""

from __future__ import annotations

import signal
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from distbench.plan import Task
from distbench.record import Record

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
        self._seconds: dict[tuple[str, str], list[float]] = {}

    def took(self, task: Task, seconds: float) -> None:
        """A trial took *seconds*."""
        self._seconds.setdefault((task.job.kind, task.case.id), []).append(seconds)

    def remaining(self, done: int) -> float | None:
        """Seconds that the trials after the first *done* should take; None if unknown."""
        means = {key: statistics.fmean(values) for key, values in self._seconds.items()}
        if not means:
            return None
        of_kind: dict[str, list[float]] = {}
        for (kind, _), mean in means.items():
            of_kind.setdefault(kind, []).append(mean)
        overall = statistics.fmean(means.values())
        kinds = {kind: statistics.fmean(values) for kind, values in of_kind.items()}
        return sum(means.get(key, kinds.get(key[0], overall)) for key in self._todo[done:])
