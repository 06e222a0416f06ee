"""How much runs of one case differ from one occasion to another, as far as there have been some.

A run is one occasion: another day, another neighbour, another place in memory. Its trials share that,
so they can't tell how large it is; only runs can.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from distbench.analysis.statistics.quantiles import t_quantile

MIN_RUNS = 3
"""Fewer runs between which nothing changed say nothing about how runs differ."""


@dataclass(frozen=True)
class RunVariance:
    """Spread of a number of one case over runs."""

    deviation: float
    """Standard deviation of the natural logarithm of a run's number around the level of its time."""
    runs: int
    levels: int = 1
    """Between which something did change."""

    @property
    def degrees_of_freedom(self) -> int:
        """Degrees of freedom behind ``deviation``."""
        return self.runs - self.levels

    def half_log_width(self, confidence: float) -> float:
        """Half the width of the interval of the log ratio of two runs between which nothing changed."""
        return t_quantile((1 + confidence) / 2, self.degrees_of_freedom) * math.sqrt(2) * self.deviation


@dataclass(frozen=True)
class RunVariances:
    """How much runs of several cases have differed."""

    by_case_and_column: Mapping[tuple[str, str], RunVariance] = field(default_factory=dict)
    """By case id and column."""
    absent: str = f"it takes {MIN_RUNS} runs of a case in one environment"
    """Why ``days`` lacks a case."""


NO_EARLIER_RUNS = RunVariances()
"""No other runs."""


def run_variance(levels: Sequence[Sequence[float]]) -> RunVariance | None:
    """Spread within *levels*, each the numbers of runs between which nothing changed.

    None: there are too few of them, or one is not above 0.
    """
    freedom = sum(map(len, levels)) - len(levels)
    if freedom < MIN_RUNS - 1 or min(map(min, levels)) <= 0:
        return None
    squares = 0.0
    for values in levels:
        logs = [math.log(value) for value in values]
        middle = math.fsum(logs) / len(logs)
        squares += math.fsum((log - middle) ** 2 for log in logs)
    return RunVariance(math.sqrt(squares / freedom), sum(map(len, levels)), len(levels))
