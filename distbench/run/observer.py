"""Progress callbacks of a run, and the estimate of its remaining time."""

from __future__ import annotations

from statistics import fmean

from distbench.core.grouping import group_pairs
from distbench.plan import PlannedTrial
from distbench.record import Record


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
        self._durations: dict[tuple[str, str], list[float]] = {}

    def add(self, task: PlannedTrial, seconds: float) -> None:
        """Add the duration of a trial."""
        self._durations.setdefault((task.job.kind, task.case.id), []).append(seconds)

    def longest(self, task: PlannedTrial) -> float | None:
        """Seconds of the longest trial of *task*'s case so far; None if there is none."""
        return max(self._durations.get((task.job.kind, task.case.id), []), default=None)

    def remaining(self, done: int) -> float | None:
        """Estimated seconds of the trials after the first *done*; None if unknown."""
        if not self._durations:
            return None
        means = {trial: fmean(seconds) for trial, seconds in self._durations.items()}
        pairs = ((kind, mean) for (kind, _), mean in means.items())
        of_kinds = {kind: fmean(each) for kind, each in group_pairs(pairs).items()}
        overall = fmean(means.values())
        return sum(means.get(trial, of_kinds.get(trial[0], overall)) for trial in self._todo[done:])
