"""Sequential test of two arms run side by side: results of their pairs of trials, and when to stop.

The sample is the pair: one trial of each arm, next to each other in time, so that slow changes of
the machine affect both and cancel in their ratio. Every number is a cost
(seconds of a step, or the reciprocal of an efficiency), so a ratio above 1 is worse throughout.

A disturbed launch must not hide what all others show, so the mean of times leaves out a tenth of the
pairs at each end (J. W. Tukey and D. H. McLaughlin 1963, Sankhya A 25; K. K. Yuen 1974, Biometrika 61).

Stopping: on the width of the interval, never on its first significance, which would raise the false
alarms. An effect beyond doubt ends the series early (Haybittle 1971, Peto et al. 1976: an interval of 99.9%).
"""

from __future__ import annotations

import bisect
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy

from distbench.analysis.statistics.distributions import t_quantile

PairVerdict = Literal["pass", "regressed", "improved", "inconclusive"]

EARLY_STOP_CONFIDENCE = 0.999
"""Confidence of the interval that may end a series early."""
MAX_PAIRS_NEEDED = 10_000
"""Largest number of pairs considered: a spread that needs more will not be averaged away."""
POWER = 0.9
"""Probability with which a gate stops a loss that it is said to detect."""
LOOK_SCHEDULE = (5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 60, 80, 100)
"""Numbers of pairs after which a series may end."""


@dataclass(frozen=True)
class Estimator:
    """Estimator of the mean log ratio of a series and its interval."""

    trim_fraction: float
    """Fraction of the pairs that is left out at each end."""
    confidence: float
    """Confidence of the reported and deciding interval, as if the number of pairs had been fixed."""

    def mean(self, log_ratios: Sequence[float]) -> tuple[float, float]:
        """Mean of at least 2 *log_ratios*, and the standard deviation that determines its error.

        The error is Yuen's: those that are left out count as the outermost that is kept (winsorised).
        """
        count, cut = len(log_ratios), self._trim_count(len(log_ratios))
        kept = sorted(log_ratios)[cut : count - cut]
        winsorised = [kept[0]] * cut + kept + [kept[-1]] * cut
        squares = float(np.var(winsorised)) * count
        return statistics.fmean(kept), math.sqrt(squares * count / (len(kept) * (len(kept) - 1)))

    def degrees_of_freedom(self, pairs: int) -> int:
        """Degrees of freedom of the deviation of *pairs* pairs."""
        return pairs - 2 * self._trim_count(pairs) - 1

    def half_width(self, deviation: float, pairs: int, confidence: float | None = None) -> float:
        """Half the width of the interval of the mean of at least 2 *pairs*."""
        level = self.confidence if confidence is None else confidence
        return t_quantile((1 + level) / 2, self.degrees_of_freedom(pairs)) * deviation / math.sqrt(pairs)

    def _trim_count(self, pairs: int) -> int:
        return int(self.trim_fraction * pairs)


TIME_ESTIMATOR = Estimator(trim_fraction=0.1, confidence=0.97)
"""A series that looks quiet by luck ends sooner: an interval of 97% holds in 95% of series
(``tests/unit/gate/test_gate_statistics.py``)."""
BYTE_ESTIMATOR = Estimator(trim_fraction=0.0, confidence=0.95)
"""Nothing disturbs an allocator; where it alternates between two levels, neither is an outlier."""


@dataclass(frozen=True)
class PairRule:
    """Definition of a change, and the certainty that a verdict needs."""

    effect: float
    """The smallest relevant change of a cost, as a fraction: 0.03 is a step that takes 1.03x as long."""
    min_pairs: int = 5
    """Pairs before the first look."""
    max_pairs: int = 20
    """Maximum pairs of a series."""
    estimator: Estimator = TIME_ESTIMATOR

    @property
    def limit(self) -> float:
        """``effect`` as a logarithm: bound for the mean, and the allowed half-width of the interval."""
        return math.log1p(self.effect)


@dataclass(frozen=True)
class InterimLook:
    """State of a series of pairs so far."""

    pairs: int
    ratio: float
    """Cost of the candidate over that of the baseline: geometric mean over pairs, trimmed."""
    low: float
    """Lower end of its interval, which holds in 95% of series."""
    high: float
    deviation: float
    """Standard deviation of the natural logarithm of a pair's ratio, by the rule's estimator."""
    word: PairVerdict
    is_conclusive: bool
    """True if more pairs are unnecessary: the interval is narrow enough, or the effect beyond doubt."""
    pairs_needed: int
    """Pairs that a narrow enough interval would take at this deviation; ``MAX_PAIRS_NEEDED``: that many or
    more."""


def take_look(log_ratios: Sequence[float], rule: PairRule) -> InterimLook:
    """Evaluate pairs, given natural logarithms of candidate cost over baseline cost.

    The interval is Student's t over pairs, trimmed, which holds from three pairs on; a bootstrap over so few
    is too narrow, and one over steps treats those of a trial as independent.

    Raises:
        ValueError: fewer than two pairs, or a ratio that is not a finite number.
    """
    if len(log_ratios) < 2:
        raise ValueError(f"{len(log_ratios)} pairs are too few to know their spread; at least 2 are needed")
    if wrong := [value for value in log_ratios if not math.isfinite(value)]:
        raise ValueError(f"a cost ratio is not a positive number: its logarithm is {wrong[0]}")
    count = len(log_ratios)
    mean, deviation = rule.estimator.mean(log_ratios)
    half = rule.estimator.half_width(deviation, count)
    is_narrow = half <= rule.limit
    beyond_doubt = abs(mean) >= max(
        rule.limit, rule.estimator.half_width(deviation, count, EARLY_STOP_CONFIDENCE)
    )
    return InterimLook(
        pairs=count,
        ratio=_exp(mean),
        low=_exp(mean - half),
        high=_exp(mean + half),
        deviation=deviation,
        word=_word(mean, half, rule),
        is_conclusive=is_narrow or beyond_doubt,
        pairs_needed=count if is_narrow else pairs_needed(deviation, rule.effect, rule.estimator),
    )


def is_series_over(log_ratios: Sequence[float], rule: PairRule) -> bool:
    """True if a series ends with these pairs: they are enough, or all pairs have run.

    Raises:
        ValueError: as of ``take_look``.
    """
    count = len(log_ratios)
    is_look = count == rule.min_pairs or (count > rule.min_pairs and count in LOOK_SCHEDULE)
    return count >= rule.max_pairs or (is_look and take_look(log_ratios, rule).is_conclusive)


def _word(mean: float, half: float, rule: PairRule) -> PairVerdict:
    if mean - half > 0 and mean >= rule.limit:
        return "regressed"
    if mean + half < 0 and mean <= -rule.limit:
        return "improved"
    return "pass" if half <= rule.limit else "inconclusive"


def resolvable_effect(deviation: float, pairs: int, estimator: Estimator = TIME_ESTIMATOR) -> float:
    """Smallest effect, as a fraction, that *pairs* of this deviation can distinguish from none."""
    return _exp(estimator.half_width(deviation, pairs)) - 1


def series_power(deviation: float, loss: float, rule: PairRule) -> float:
    """Probability that one series calls a true *loss*, as a fraction, ``regressed``.

    Its mean is normal around the loss and has to reach the tolerance, and the half-width of its interval
    where that is the larger: at the pairs that this *deviation* requires, as far as *rule* allows them.
    """
    if not deviation:
        return float(loss > 0 and math.log1p(loss) >= rule.limit)
    pairs = _expected_pairs(deviation, rule)
    needed = max(rule.limit, rule.estimator.half_width(deviation, pairs))
    return float(scipy.special.ndtr((math.log1p(loss) - needed) * math.sqrt(pairs) / deviation))


def gate_power(deviation: float, loss: float, rule: PairRule) -> float:
    """Probability that a gate stops a true *loss*, as a fraction: both of its series have to see it."""
    return series_power(deviation, loss, rule) ** 2


def detectable_loss(deviation: float, rule: PairRule, power: float = POWER) -> float:
    """Smallest true loss, as a fraction, that a gate stops with probability *power* (``gate_power``)."""
    pairs = _expected_pairs(deviation, rule)
    needed = max(rule.limit, rule.estimator.half_width(deviation, pairs))
    error = deviation / math.sqrt(pairs)
    return _exp(needed + float(scipy.special.ndtri(math.sqrt(power))) * error) - 1


def _expected_pairs(deviation: float, rule: PairRule) -> int:
    """Pairs of a series with this *deviation*: those at its first look after they are enough."""
    looks = [rule.min_pairs, *(count for count in LOOK_SCHEDULE if rule.min_pairs < count < rule.max_pairs)]
    needed = pairs_needed(deviation, rule.effect, rule.estimator)
    return next((count for count in looks if count >= needed), rule.max_pairs)


def pairs_needed(deviation: float, effect: float, estimator: Estimator = TIME_ESTIMATOR) -> int:
    """Pairs for which half the interval is as narrow as *effect*; ``MAX_PAIRS_NEEDED`` if more are needed."""
    limit = math.log1p(effect)
    counts = range(2, MAX_PAIRS_NEEDED)
    return 2 + bisect.bisect_left(
        counts, True, key=lambda pairs: estimator.half_width(deviation, pairs) <= limit
    )


def _exp(logarithm: float) -> float:
    # beyond that there is no float, and no ratio of two times either
    return math.exp(max(-700.0, min(logarithm, 700.0)))
