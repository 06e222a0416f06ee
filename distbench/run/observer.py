"""Who is told how a run goes on, and the estimate of the time left."""

from __future__ import annotations

from typing import Protocol

from distbench.case import Case
from distbench.record import Record


class Observer(Protocol):
    """Who is told how a run goes on."""

    def note(self, text: str) -> None:
        """Something that takes time begins, or something that a user should know."""

    def trial_started(
        self, case: Case, round_: int, done: int, total: int, remaining_s: float | None
    ) -> None:
        """A trial begins; *remaining_s* is None while nothing is known to estimate it from."""

    def trial_ended(self, record: Record) -> None:
        """A trial has ended and its record is on the disk."""


class Pace:
    """Estimates the time left from the trials that have ended: each case by its own, else by the mean."""

    def __init__(self, todo: list[tuple[int, Case]]) -> None:
        self._todo = [case.id for _, case in todo]
        self._seconds: dict[str, list[float]] = {}

    def took(self, case: Case, seconds: float) -> None:
        """A trial of *case* took *seconds*."""
        self._seconds.setdefault(case.id, []).append(seconds)

    def remaining(self, done: int) -> float | None:
        """Return the seconds that the trials after the first *done* should take, None if unknown."""
        means = {case_id: sum(values) / len(values) for case_id, values in self._seconds.items()}
        if not means:
            return None
        overall = sum(means.values()) / len(means)
        return sum(means.get(case_id, overall) for case_id in self._todo[done:])
