"""Whether a series of step times was still drifting. Without torch."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence

LEAST = 6
"""Fewer values than this can't show a trend at any useful level."""
UNSETTLED_P = 0.01
UNSETTLED_CHANGE = -0.05
"""A trial had not settled if its steps became faster at this level and by more than this."""


def stretch(warm: Sequence[float], timed: Sequence[float]) -> list[float]:
    """Steps over which drift is tested: the end of the warm-up and all timed steps."""
    # the first step compiles and allocates, and a slow start is what the warm-up is for
    later = warm[1:]
    return [*later[(len(later) + 1) // 2 :], *timed]


def unsettled(values: Sequence[float]) -> bool:
    """Whether a series of step times was still falling."""
    if len(values) < LEAST or not statistics.median(values):
        return False
    return falling(values) < UNSETTLED_P and change(values) < UNSETTLED_CHANGE


def falling(values: Sequence[float]) -> float:
    """One-sided p-value of a falling trend in *values* (Mann-Kendall, normal approximation).

    Kendall, Rank Correlation Methods (1975); with the correction for ties and for continuity. The
    steps of a settled series in any order are equally likely, so p < 0.01 comes by chance in 1 of
    100 settled trials, and more often where noise comes in bursts.
    """
    score = sum((b > a) - (b < a) for a, b in itertools.combinations(values, 2))
    n = len(values)
    ties = [values.count(value) for value in set(values)]
    variance = (n * (n - 1) * (2 * n + 5) - sum(t * (t - 1) * (2 * t + 5) for t in ties)) / 18
    if variance <= 0:
        return 1.0
    return statistics.NormalDist().cdf((score + 1) / math.sqrt(variance)) if score < 0 else 1.0


def change(values: Sequence[float]) -> float:
    """Change from the first to the last of *values*, by Theil-Sen's slope, relative to their median."""
    slopes = [(b - a) / (j - i) for (i, a), (j, b) in itertools.combinations(enumerate(values), 2)]
    return statistics.median(slopes) * (len(values) - 1) / statistics.median(values)
