"""Who is told how a run goes on, and the estimate of the time left."""

from __future__ import annotations

import statistics
from typing import Protocol

from distbench.plan import Task
from distbench.record import Record


class Observer(Protocol):
    """Who is told how a run goes on."""

    def note(self, text: str) -> None:
        """Something that takes time begins, or something that a user should know."""

    def trial_started(self, task: Task, done: int, total: int, remaining_s: float | None) -> None:
        """A trial begins; *remaining_s* is None while nothing is known to estimate it from."""

    def trial_ended(self, record: Record) -> None:
        """A trial has ended and its record is on the disk."""


class Pace:
    """Estimates the time left from the trials that have ended: each case by its own, else by the mean.

    Jobs of one kind say nothing of those of another; before the first of its kind has ended, the
    mean of all that have stands in for it.
    """

    def __init__(self, todo: list[Task]) -> None:
        self._todo = [(task.job.kind, task.case.id) for task in todo]
        self._seconds: dict[tuple[str, str], list[float]] = {}

    def took(self, task: Task, seconds: float) -> None:
        """A trial took *seconds*."""
        self._seconds.setdefault((task.job.kind, task.case.id), []).append(seconds)

    def remaining(self, done: int) -> float | None:
        """Return the seconds that the trials after the first *done* should take, None if unknown."""
        means = {key: statistics.fmean(values) for key, values in self._seconds.items()}
        if not means:
            return None
        of_kind: dict[str, list[float]] = {}
        for (kind, _), mean in means.items():
            of_kind.setdefault(kind, []).append(mean)
        overall = statistics.fmean(means.values())
        kinds = {kind: statistics.fmean(values) for kind, values in of_kind.items()}
        return sum(means.get(key, kinds.get(key[0], overall)) for key in self._todo[done:])
