"""Pairs of trials of a gate: one of each arm, next to each other in time."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from distbench.record import Record

RecordPairs = Sequence[tuple[Record, Record]]
"""Trials of baseline and candidate."""


def median_of_arm(pairs: RecordPairs, column: str, side: int) -> float | None:
    """Median of a column in the baseline (*side* 0) or the candidate (1).

    None if no record has it, NaN if it is NaN in one of them.
    """
    values = [pair[side].values[column] for pair in pairs if column in pair[side].values]
    if any(map(math.isnan, values)):
        # NaN can't be sorted
        return math.nan
    return statistics.median(values) if values else None


def log_ratios(pairs: RecordPairs, column: str) -> list[float]:
    """Natural logarithms of candidate over baseline; NaN where one is absent or not a positive number."""
    return [_log_ratio(pair, column) for pair in pairs]


def _log_ratio(pair: tuple[Record, Record], column: str) -> float:
    before, after = (record.values.get(column, math.nan) for record in pair)
    # not the logarithm of the quotient, which may be too large or too small for a float
    return math.log(after) - math.log(before) if before > 0 and after > 0 else math.nan
