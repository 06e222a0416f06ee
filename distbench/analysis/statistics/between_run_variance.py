"""Variance between runs of one case.

The trials of a run share its day, its neighbours on the machine and its placement in memory, so they can't
show how much these vary; only several runs can.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from distbench.analysis.statistics.quantiles import t_quantile

MIN_RUNS = 3
"""Minimum number of runs without a change between them to estimate their variance."""


@dataclass(frozen=True)
class RunVariance:
    """Spread of a column of one case over runs."""

    deviation: float
    """Standard deviation of the natural logarithm of a run's number around the level at that time."""
    runs: int
    levels: int = 1
    """Number of levels, separated by changes."""

    @property
    def degrees_of_freedom(self) -> int:
        """Degrees of freedom behind ``deviation``."""
        return self.runs - self.levels

    def half_log_width(self, confidence: float) -> float:
        """Half the width of the interval of the log ratio of two runs without a change between them."""
        return t_quantile((1 + confidence) / 2, self.degrees_of_freedom) * math.sqrt(2) * self.deviation


@dataclass(frozen=True)
class RunVariances:
    """Between-run variances of several cases."""

    by_case_and_column: Mapping[tuple[str, str], RunVariance] = field(default_factory=dict)
    """By case id and column."""
    absent: str = f"{MIN_RUNS} runs of a case in one environment are needed"
    """Reason why ``by_case_and_column`` lacks a case."""


NO_EARLIER_RUNS = RunVariances()
"""No other runs."""


def run_variance(levels: Sequence[Sequence[float]]) -> RunVariance | None:
    """Variance within *levels*, each the numbers of runs without a change between them.

    None if there are too few, or if one is not above 0.
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
