"""How much runs of one case differ from one occasion to another, as far as there have been some.

A run is one occasion: another day, another neighbour, another place in memory. Its trials share that,
so they can't tell how large it is; only runs can.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from distbench.analysis.quantiles import t_quantile

LEAST_FREEDOM = 2
"""Fewer runs beyond the first of their level say nothing about how runs differ."""


@dataclass(frozen=True)
class Days:
    """Spread of a number of one case over runs."""

    deviation: float
    """Standard deviation of the natural logarithm of a run's number around the level of its time."""
    freedom: int
    """Degrees of freedom behind it: runs less levels."""

    def half(self, confidence: float) -> float:
        """Half the width of the interval of the log ratio of two runs between which nothing changed."""
        return t_quantile((1 + confidence) / 2, self.freedom) * math.sqrt(2) * self.deviation


def days(levels: Sequence[Sequence[float]]) -> Days | None:
    """Spread within *levels*, each the numbers of runs between which nothing changed.

    None: there are too few of them, or one is not above 0.
    """
    freedom = sum(len(values) - 1 for values in levels)
    if freedom < LEAST_FREEDOM or min(map(min, levels)) <= 0:
        return None
    squares = 0.0
    for values in levels:
        logs = [math.log(value) for value in values]
        middle = math.fsum(logs) / len(logs)
        squares += math.fsum((log - middle) ** 2 for log in logs)
    return Days(math.sqrt(squares / freedom), freedom)
