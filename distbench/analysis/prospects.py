"""Cases of a grid that may still be the fastest, by what is predicted of them.

Predictions for one machine share their error: it is taken from the cases that were measured already, by the
median of measured over predicted. What is left of it, and the interval of a prediction, decide how fast a
case may be at best. It is measured if that is faster than the fastest one so far.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from distbench.analysis.choice import SETTLED_MARGIN
from distbench.core.case import TUNABLE_FIELDS, Case
from distbench.core.grouping import group_by
from distbench.core.measurement import MeasureConfig
from distbench.prediction import NORMAL_95, PredictedValue

CASES_PER_ROUND = 3
"""Cases measured before the predictions are corrected again."""
CLOSE = 0.10
"""Advantage of the fastest case, as a fraction, from which on one trial of another is enough."""
_ENOUGH_RESIDUALS = 4
"""Measured cases from which on their own spread counts, in place of the interval of the predictions."""
_LEAST_SPREAD = 0.05
"""Relative standard deviation below which no few residuals are believed."""


@dataclass(frozen=True)
class TuningCase:
    """A case that may be the fastest."""

    case: Case
    predicted: PredictedValue | None
    """Tokens per second over all devices; None: nothing tells."""
    is_upper_bound: bool = False
    """True if the prediction lacks a part of the step."""
    measured: float | None = None
    """Tokens per second, measured; None: they were not, or the case does not fit."""
    trials: int = 0
    """Its trials, measured or not."""
    quiet_trials: int = 0
    """Its measured trials that nothing disturbed."""

    @property
    def place(self) -> Hashable:
        """Equal for cases that compete: the same work on as many devices."""
        return self.case.work_key(TUNABLE_FIELDS)

    @property
    def expected(self) -> float:
        """Predicted tokens per second; infinite if nothing tells: it may be the best."""
        return self.predicted.value if self.predicted else math.inf


def promising_cases(prospects: Sequence[TuningCase]) -> list[Case]:
    """Cases without a trial that may win, the most promising of each place; none: the others can't."""
    return [case for place in _places(prospects) for case in _untried(place)]


def unsettled_cases(prospects: Sequence[TuningCase], measure: MeasureConfig) -> list[Case]:
    """Cases close to the fastest one with fewer quiet trials than *measure* asks for, and others without any.

    A case that was only measured under noise leaves open whether another one is the fastest.
    """
    return [
        one.case
        for place in _places(prospects)
        for one in place
        if one.measured and one.quiet_trials < (trials_needed := _asked_trials(one, place, measure))
        if one.trials < trials_needed + measure.repeat_noisy
    ]


def _asked_trials(one: TuningCase, place: Sequence[TuningCase], measure: MeasureConfig) -> int:
    is_close = (one.measured or 0.0) * (1 + CLOSE) >= _fastest(place)
    return measure.trials if is_close else 1


def _places(prospects: Sequence[TuningCase]) -> list[list[TuningCase]]:
    return [*group_by(prospects, lambda one: one.place).values()]


def _fastest(place: Sequence[TuningCase]) -> float:
    return max((one.measured for one in place if one.measured), default=0.0)


def may_be_fastest(one: TuningCase, place: Sequence[TuningCase]) -> bool:
    """True if *one* has no trial, and may be faster than the measured cases of its *place*."""
    return not one.trials and highest_speed(one, place) > _fastest(place) * (1 + SETTLED_MARGIN)


def _untried(place: Sequence[TuningCase]) -> list[Case]:
    promising = [one for one in place if may_be_fastest(one, place)]
    # of equal ones, the first in the suite
    best = sorted(promising, key=lambda one: -one.expected)
    return [one.case for one in best[:CASES_PER_ROUND]]


def highest_speed(one: TuningCase, place: Sequence[TuningCase]) -> float:
    """Tokens per second that *one* may reach, given the measured cases of its *place*; infinite: unknown."""
    corrected = corrected_speed(one, place)
    return corrected.high if corrected else math.inf


def corrected_speed(one: TuningCase, place: Sequence[TuningCase]) -> PredictedValue | None:
    """Predicted tokens per second of *one*, corrected by the measured cases of its *place*; None: unknown."""
    if one.predicted is None:
        return None
    logs = [
        math.log(other.measured / other.predicted.value)
        for other in place
        if other.measured and other.predicted and not other.is_upper_bound
    ]
    shared = statistics.median(logs) if logs else 0.0
    upward = math.log(one.predicted.high / one.predicted.value)
    downward = math.log(one.predicted.value / one.predicted.low)
    if len(logs) >= _ENOUGH_RESIDUALS:
        spread = NORMAL_95 * max(_LEAST_SPREAD, statistics.stdev(logs))
        upward = max(spread, min(upward, max(logs) - shared))
        downward = max(spread, min(downward, shared - min(logs)))
    value = one.predicted.value
    return PredictedValue(*(value * math.exp(shared + end) for end in (0.0, -downward, upward)))
