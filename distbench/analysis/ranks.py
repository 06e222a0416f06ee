"""What each rank did in each step, and which rank the others waited for."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from distbench.analysis.summary import THROUGHPUT, CaseSummary
from distbench.record import Record

STRAGGLER = 1.2
"""The slowest rank's work over the median rank's above which it is named."""

# a rank's own work if it was profiled; else its steps, which include waiting for others
_COLUMNS = ("work_s", "step_s")


@dataclass(frozen=True)
class Grid:
    """One column of one trial, rank by step."""

    case_id: str
    column: str
    """``work_s``; ``step_s`` if no rank reported its work."""
    seconds: list[list[float | None]]
    """Rank -> step -> seconds."""
    slowest: int
    """Rank with the most seconds per step."""
    excess: float
    """Its mean over that of the median rank; 1: no rank is behind."""

    @property
    def straggler(self) -> bool:
        """Whether the slowest rank is worth naming."""
        return self.column == "work_s" and self.excess >= STRAGGLER


def work(record: Record, column: str = "work_s") -> dict[int, float]:
    """Mean of *column* over the steps of each rank that has any."""
    found = {}
    for rank, steps in enumerate(record.samples.get(column, [])):
        if known := [value for value in steps if value is not None and math.isfinite(value)]:
            found[rank] = statistics.fmean(known)
    return found


def grids(cases: Sequence[CaseSummary], most: int) -> list[Grid]:
    """Grids of at most *most* cases worth a look: the slowest and the most uneven alternately."""
    return list(islice((grid for row in _worth_a_look(cases) if (grid := _grid(row))), most))


def _worth_a_look(cases: Sequence[CaseSummary]) -> list[CaseSummary]:
    rows = [row for row in cases if row.measured and row.case.world_size > 1]
    slow = sorted(
        (row for row in rows if THROUGHPUT in row.values), key=lambda row: row.values[THROUGHPUT].value
    )
    uneven = sorted(
        (row for row in rows if "imbalance" in row.values), key=lambda row: -row.values["imbalance"].value
    )
    both = [row for pair in zip(uneven, slow, strict=False) for row in pair]
    return list({row.case.id: row for row in [*both, *uneven, *slow]}.values())


def _grid(row: CaseSummary) -> Grid | None:
    if row.detail is None:
        return None
    for column in _COLUMNS:
        means = work(row.detail, column)
        if len(means) > 1 and statistics.median(means.values()) > 0:
            slowest = max(means, key=lambda rank: means[rank])
            excess = means[slowest] / statistics.median(means.values())
            return Grid(row.case.id, column, [*row.detail.samples[column]], slowest, excess)
    return None
