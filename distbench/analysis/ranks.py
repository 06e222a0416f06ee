"""What each rank did in each step, and which rank the others waited for."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from distbench.analysis.case_summary import THROUGHPUT, CaseSummary, ranked
from distbench.analysis.losses import numbers
from distbench.record import Record

STRAGGLER = 1.2
"""The slowest rank's work over the median rank's above which it is named."""

# a rank's own work if it was profiled; else its steps, which include waiting for others
_COLUMNS = ("work_s", "step_s")


@dataclass(frozen=True)
class Grid:
    """One column of one trial, rank by step."""

    row: CaseSummary
    column: str
    """``work_s``; ``step_s`` if no rank reported its work."""
    seconds: list[list[float | None]]
    """Rank -> step -> seconds."""
    means: dict[int, float]
    """Mean over the steps of each rank that has any."""
    median: float
    """Of the means; above 0."""


def work(record: Record, column: str = "work_s") -> dict[int, float]:
    """Mean of *column* over the steps of each rank that has any."""
    means = {}
    for rank, steps in enumerate(record.samples.get(column, [])):
        if known := numbers(steps):
            means[rank] = statistics.fmean(known)
    return means


def grids(cases: Sequence[CaseSummary], most: int) -> list[Grid]:
    """Grids of at most *most* cases worth a look: the slowest and the most uneven alternately."""
    return list(islice((grid for row in _worth_a_look(cases) if (grid := _grid(row))), most))


def _worth_a_look(cases: Sequence[CaseSummary]) -> list[CaseSummary]:
    rows = [row for row in cases if row.measured and row.case.world_size > 1]
    slow, uneven = ranked(rows, THROUGHPUT), ranked(rows, "imbalance", reverse=True)
    both = [row for pair in zip(uneven, slow, strict=False) for row in pair]
    return list({row.case.id: row for row in [*both, *uneven, *slow]}.values())


def _grid(row: CaseSummary) -> Grid | None:
    if row.detail is None:
        return None
    for column in _COLUMNS:
        means = work(row.detail, column)
        if len(means) > 1 and (median := statistics.median(means.values())) > 0:
            return Grid(row, column, [*row.detail.samples[column]], means, median)
    return None
