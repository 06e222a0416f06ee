"""More rounds for the cases whose trials others disturbed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from distbench.analysis.run import AnalysedRun
from distbench.analysis.text import listed
from distbench.record.store import Run
from distbench.run import Observer


class Repeating:
    """Called with the run after each round: ids of the cases that have too few undisturbed trials."""

    def __init__(self, observer: Observer, trials: int, rounds: int) -> None:
        self._observer = observer
        self._trials = trials
        """Undisturbed trials that each case is to have."""
        self._left = rounds
        """Rounds that may still be added."""

    def __call__(self, run: Run) -> list[str]:
        """Cases that need another round; none if all trials are quiet enough, or no round is left."""
        rows = [row for row in AnalysedRun.read(run).cases if row.measured and row.degraded_trials]
        noisy = [row.case for row in rows if row.trials - row.degraded_trials < self._trials]
        names = listed([case.name for case in noisy], most=6)
        if not noisy:
            return []
        if not self._left:
            self._observer.note(f"still noisy, and --repeat-noisy allows no further round: {names}")
            self._left = -1
        if self._left < 0:
            return []
        self._left -= 1
        self._observer.note(f"noisy trials are repeated: {names}")
        return [case.id for case in noisy]


def first_of(*reasons: Callable[[Run], Sequence[str]] | None) -> Callable[[Run], Sequence[str]]:
    """The cases of the first of *reasons* that has some."""

    def cases(run: Run) -> Sequence[str]:
        asked = (reason(run) for reason in reasons if reason)
        return next((ids for ids in asked if ids), [])

    return cases
