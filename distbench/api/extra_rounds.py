"""Decide which cases need more rounds: those with noisy trials, and those that may still be the best."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence

from distbench.analysis.choice import SETTLED_MARGIN
from distbench.analysis.run import RunAnalysis
from distbench.analysis.undecided_cases import unsettled_candidates
from distbench.core.case import Case
from distbench.core.job import MEASURE
from distbench.core.text import join_limited
from distbench.core.units import format_count
from distbench.record import Status, records_of_kind
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


class RecommendationRounds:
    """Called with the run after each round: ids of the cases that need another one."""

    def __init__(self, observer: Observer, minutes: float, looks: int) -> None:
        self._observer, self._minutes = observer, minutes
        self._looks = looks
        """Looks so far, those of earlier sessions included: each takes a part of the error rate."""
        self._end: float | None = None

    def __call__(self, run: Run) -> list[str]:
        """Cases that need another round; none if the recommendation is settled, or the time is up."""
        if self._end is None:
            self._end = time.monotonic() + 60 * self._minutes
        analysed = RunAnalysis.read(run)
        if not any(one.speed and not one.exclusion_reason for one in analysed.candidates):
            self._observer.note("nothing to settle, because no case can be recommended")
            return []
        self._looks += 1
        every = unsettled_candidates(analysed.candidates, self._looks)
        if not every:
            self._observer.note(
                f"settled: no case can be more than {SETTLED_MARGIN:.0%} better than the pick"
            )
            return []
        failing = _failing_cases(analysed)
        left = [one for one in every if one.id not in failing]
        if lost := [one.name for one in every if one.id in failing]:
            self._observer.note(
                f"not measured again, because the last trial failed: {join_limited(lost, limit=6)}"
            )
        if len(left) < 2:
            self._observer.note("not settled: the remaining candidates fail")
            return []
        names = join_limited(
            [f"{one.name} on {format_count(one.devices, 'device')}" for one in left], limit=6
        )
        if time.monotonic() >= self._end:
            self._observer.note(
                f"not settled after {self._minutes:g} minutes (--minutes): {names} may still be the best"
            )
            return []
        self._observer.note(f"not settled: starting another round of {names}")
        return [one.id for one in left]


def previous_looks(run: Run, trials: int) -> int:
    """Interim looks at *run* in earlier sessions, at most.

    Each caused a round beyond the planned *trials*.
    """
    rounds = 1 + max((record.round for record in records_of_kind(run.records(), MEASURE)), default=-1)
    return max(0, rounds - trials)


def _failing_cases(run: RunAnalysis) -> set[str]:
    """Cases whose last trial failed, as another one would. A stopped one did not fail."""
    ended = [record for record in run.timed_records if record.status is not Status.CANCELLED]
    last = {record.case_id: record for record in sorted(ended, key=lambda record: record.round)}
    return {case_id for case_id, record in last.items() if record.status is not Status.MEASURED}
