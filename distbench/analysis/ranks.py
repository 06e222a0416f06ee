"""Step times of each rank, and the rank that the others waited for."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from distbench.analysis.case_summary import THROUGHPUT, CaseSummary, sorted_by_value
from distbench.analysis.losses.case_losses import finite_values
from distbench.record import Record

STRAGGLER_RATIO = 1.2
"""Ratio of the slowest rank's work to the median rank's above which the rank is named."""

# a rank's own work if it was profiled; else its steps, which include waiting for others
_WORK_COLUMNS = ("work_s", "step_s")


@dataclass(frozen=True)
class RankStepTimes:
    """One column of one trial, by rank and step."""

    row: CaseSummary
    column: str
    """``work_s``; ``step_s`` if no rank reported its work."""
    seconds: list[list[float | None]]
    """Rank -> step -> seconds."""
    means: dict[int, float]
    """Mean over the steps of each rank that has any."""
    median: float
    """Median of the means; above 0."""


def mean_by_rank(record: Record, column: str = "work_s") -> dict[int, float]:
    """Mean of *column* over the steps of each rank that has any."""
    means = {}
    for rank, steps in enumerate(record.samples.get(column, [])):
        if known := finite_values(steps):
            means[rank] = statistics.fmean(known)
    return means


def notable_rank_times(cases: Sequence[CaseSummary], limit: int) -> list[RankStepTimes]:
    """Step times of at most *limit* notable cases: the slowest and the most uneven alternately."""
    return list(islice((grid for row in _notable_cases(cases) if (grid := _rank_step_times(row))), limit))


def _notable_cases(cases: Sequence[CaseSummary]) -> list[CaseSummary]:
    rows = [row for row in cases if row.measured and row.case.world_size > 1]
    slow, uneven = sorted_by_value(rows, THROUGHPUT), sorted_by_value(rows, "imbalance", reverse=True)
    both = [row for pair in zip(uneven, slow, strict=False) for row in pair]
    return list({row.case.id: row for row in [*both, *uneven, *slow]}.values())


def _rank_step_times(row: CaseSummary) -> RankStepTimes | None:
    if row.representative_trial is None:
        return None
    for column in _WORK_COLUMNS:
        means = mean_by_rank(row.representative_trial, column)
        if len(means) > 1 and (median := statistics.median(means.values())) > 0:
            return RankStepTimes(row, column, [*row.representative_trial.samples[column]], means, median)
    return None
