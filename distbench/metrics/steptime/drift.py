"""Trend tests of step times, in one trial and over the trials of a case. Without torch."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence

MIN_STEPS = 6
"""Fewer values can't show a trend at any useful level."""
UNSETTLED_P = 0.005
UNSETTLED_CHANGE = -0.03
"""Trials had not settled if steps became faster at this level, and in the median by more than this change."""

_NORMAL = statistics.NormalDist()
_MAX_AUTOCORRELATION = 0.9
_MIN_P = 1e-12


def trend_window(warm: Sequence[float], timed: Sequence[float]) -> list[float]:
    """Step times in which drift is tested: the end of the warm-up and all timed steps."""
    # the first step compiles and allocates, and a slow start is what the warm-up is for
    later = warm[1:]
    return [*later[(len(later) + 1) // 2 :], *timed]


def is_unsettled(values: Sequence[float]) -> bool:
    """True if the step times of one trial were still falling."""
    if len(values) < MIN_STEPS or not statistics.median(values):
        return False
    return are_unsettled([relative_change(values)], [falling_p_value(values)])


def are_slowing(changes: Sequence[float], p_values: Sequence[float]) -> bool:
    """True if the trials of a case became slower and slower, by the test of ``are_unsettled``."""
    return are_unsettled([-change for change in changes], [1 - chance for chance in p_values])


def are_unsettled(changes: Sequence[float], p_values: Sequence[float]) -> bool:
    """True if the trials of a case still became faster, by each ``relative_change`` and ``falling_p_value``.

    All trials are judged together (Stouffer et al., The American Soldier, 1949, vol. 1: the sum of the
    trials' normal deviates over the square root of their number), and by their median change: the extreme
    of several trials is extreme by chance.
    """
    bounded = [min(max(p, _MIN_P), 1 - _MIN_P) for p in p_values]
    together = math.fsum(map(_NORMAL.inv_cdf, bounded)) / math.sqrt(len(bounded))
    return _NORMAL.cdf(together) < UNSETTLED_P and statistics.median(changes) < UNSETTLED_CHANGE


def falling_p_value(values: Sequence[float]) -> float:
    """One-sided p-value of a falling trend in *values*, which may be autocorrelated.

    Mann-Kendall test (Kendall, Rank Correlation Methods, 1975) with the corrections for ties and for
    continuity. Its variance is multiplied as in Hamed & Rao (Journal of Hydrology 204, 1998): steps of one
    trial share a state of the machine, and a disturbance of a few steps looks like a trend. A dozen steps
    give poor estimates of autocorrelations, so those of a first-order autoregression are used.
    """
    score = sum((b > a) - (b < a) for a, b in itertools.combinations(values, 2))
    n = len(values)
    ties = [values.count(value) for value in set(values)]
    variance = (n * (n - 1) * (2 * n + 5) - sum(t * (t - 1) * (2 * t + 5) for t in ties)) / 18
    if variance <= 0:
        return 1.0
    variance *= _variance_inflation(n, _autocorrelation(values))
    return _NORMAL.cdf((score - math.copysign(min(1, abs(score)), score)) / math.sqrt(variance))


def relative_change(values: Sequence[float]) -> float:
    """Change from the first to the last of *values*, by Theil-Sen's slope, relative to their median."""
    return _slope(values) * (len(values) - 1) / statistics.median(values)


def _slope(values: Sequence[float]) -> float:
    pairs = itertools.combinations(enumerate(values), 2)
    return statistics.median((b - a) / (j - i) for (i, a), (j, b) in pairs)


def _autocorrelation(values: Sequence[float]) -> float:
    """Lag-1 autocorrelation of *values* without their trend, at least 0.

    The estimate of a detrended series is too small by (2 + 4 phi) / n (van Giersbergen, Economics
    Letters 86, 2005), which is added.
    """
    n, slope = len(values), _slope(values)
    rest = [value - slope * i for i, value in enumerate(values)]
    middle = math.fsum(rest) / n
    centred = [value - middle for value in rest]
    squares = math.fsum(value * value for value in centred)
    if not squares or n <= 4:
        return 0.0
    found = math.fsum(a * b for a, b in itertools.pairwise(centred)) / squares
    return min(max((n * found + 2) / (n - 4), 0.0), _MAX_AUTOCORRELATION)


def _variance_inflation(n: int, autocorrelation: float) -> float:
    """Ratio of the variance of Mann-Kendall's score to that of independent values."""
    # the score consists of ranks, whose correlation is a little smaller (Kendall 1975)
    ranks = (6 / math.pi * math.asin(autocorrelation**lag / 2) for lag in range(1, n))
    weighted = ((n - lag) * (n - lag - 1) * (n - lag - 2) * rho for lag, rho in enumerate(ranks, 1))
    return 1 + 2 * math.fsum(weighted) / (n * (n - 1) * (n - 2))
