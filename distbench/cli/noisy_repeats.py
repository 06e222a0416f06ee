"""Add rounds for cases with noisy trials."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from distbench.analysis.run import RunAnalysis
from distbench.core.case import Case
from distbench.core.text import join_limited
from distbench.core.units import format_count
from distbench.record import Status
from distbench.record.run_folder import Run
from distbench.run import Observer


class NoisyTrialRounds:
    """Called with the run after each round: ids of the cases that have too few undisturbed trials."""

    def __init__(self, observer: Observer, trials: int, max_repeats: int) -> None:
        self._observer = observer
        self._trials = trials
        """Undisturbed trials that each case should have."""
        self._max_repeats = max_repeats
        """Additional trials that a case may have, whoever added them: a resumed run adds no more."""
        self._has_given_up = False

    def __call__(self, run: Run) -> list[str]:
        """Cases that need another round; none if all trials are quiet enough, or no more are allowed."""
        analysed = RunAnalysis.read(run)
        rows = [row for row in analysed.cases if row.measured and row.degraded_trials]
        noisy = [row.case for row in rows if row.trials - row.degraded_trials < self._trials]
        added = Counter(
            record.case_id
            for record in analysed.timed_records
            if record.round >= self._trials and record.status is not Status.CANCELLED
        )
        left = [case for case in noisy if added[case.id] < self._max_repeats]
        if left:
            self._observer.note(f"repeating noisy trials of {_names(left)}")
        elif noisy and not self._has_given_up:
            self._has_given_up = True
            self._observer.note(
                f"still noisy after {format_count(self._max_repeats, 'repeat')}, the maximum "
                f"(measure.repeat_noisy, --repeat-noisy): {_names(noisy)}"
            )
        return [case.id for case in left]


def _names(cases: Sequence[Case]) -> str:
    return join_limited([case.name for case in cases], limit=6)


def first_nonempty(*reasons: Callable[[Run], Sequence[str]] | None) -> Callable[[Run], Sequence[str]]:
    """Return the cases of the first of *reasons* that has some."""

    def cases(run: Run) -> Sequence[str]:
        asked = (reason(run) for reason in reasons if reason)
        return next((ids for ids in asked if ids), [])

    return cases
