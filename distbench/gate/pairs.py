"""Pairs of trials of a gate: one of each arm, next to each other in time."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True)
class CasePairs:
    """Pairs of a case and, if it is part of a scaling series, those of the same case on one device."""

    pairs: RecordPairs
    single_device_pairs: RecordPairs = ()
    minutes_per_pair: float = 0.0

    def log_cost_ratios(self) -> dict[str, list[float]]:
        """Log ratios of the costs that are judged over pairs, candidate over baseline."""
        costs = {"tokens_per_s": log_ratios(self.pairs, "step_s")}
        if self.single_device_pairs:
            both = zip(costs["tokens_per_s"], log_ratios(self.single_device_pairs, "step_s"), strict=False)
            # E = X_n / (n X_1): for the same number of tokens per step, its reciprocal is n t_n / t_1
            costs["efficiency"] = [many - single for many, single in both]
        if any("memory_peak" in before.values for before, _ in self.pairs):
            costs["peak_memory"] = log_ratios(self.pairs, "memory_peak")
        costs["startup"] = log_ratios(self.pairs, "startup_s")
        return costs
