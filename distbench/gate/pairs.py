"""Pairs of trials: what a gate has to judge by."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from distbench.record import Record

Pairs = Sequence[tuple[Record, Record]]
"""Trials of baseline and candidate, next to each other in time."""


def median(pairs: Pairs, column: str, side: int) -> float | None:
    """Return the median of a column in the baseline (*side* 0) or the candidate (1).

    None: no record has it; NaN: it is none in one of them.
    """
    values = [pair[side].values[column] for pair in pairs if column in pair[side].values]
    if any(map(math.isnan, values)):
        # it has no place among the sorted
        return math.nan
    return statistics.median(values) if values else None
