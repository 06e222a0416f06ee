"""Errors of predicted steps against published ones, beside those of a simpler prediction."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from distbench.prediction.estimates import StepPrediction
from foresight.published_rows import PublishedStep

APART = 1.1
"""Ratio of two measured rates from which their order counts."""

Predicted = tuple[PublishedStep, StepPrediction]


@dataclass(frozen=True)
class Errors:
    """Relative errors, predicted / measured - 1."""

    values: tuple[float, ...]

    @property
    def bias(self) -> float:
        return statistics.median(self.values)

    @property
    def median(self) -> float:
        return statistics.median(map(abs, self.values))

    @property
    def p90(self) -> float:
        """Smallest error that nine of ten do not exceed."""
        return sorted(map(abs, self.values))[math.ceil(0.9 * len(self.values)) - 1]

    @property
    def largest(self) -> float:
        return max(map(abs, self.values))


def error(pair: Predicted) -> float:
    row, step = pair
    return step.seconds.value / row.seconds - 1


def errors(pairs: Iterable[Predicted]) -> Errors:
    return Errors(tuple(map(error, pairs)))


def utilisation_errors(
    pairs: Iterable[Predicted], rows: Sequence[PublishedStep], *, own_dtype: bool = False
) -> Errors:
    """Errors of one hardware FLOPs utilisation (HFU) for all: the median of those of the other sources.

    It is of the peak in 16 bits, or with *own_dtype* of that in which a step's products are.
    """
    found: dict[str, list[float]] = {}
    for row in rows:
        found.setdefault(row.source, []).append(row.seconds_at_peak(own_dtype=own_dtype) / row.seconds)
    medians = {source: statistics.median(values) for source, values in found.items()}
    return Errors(
        tuple(
            row.seconds_at_peak(own_dtype=own_dtype)
            / statistics.median(value for source, value in medians.items() if source != row.source)
            / row.seconds
            - 1
            for row, _ in pairs
        )
    )


def covered(pairs: Sequence[Predicted]) -> int:
    """Number of steps inside their intervals."""
    return sum(step.seconds.low <= row.seconds <= step.seconds.high for row, step in pairs)


def ordered(pairs: Sequence[Predicted], *, same_model: bool) -> tuple[int, int]:
    """Pairs of one source whose faster one (tokens/s of a GPU) is predicted, and all that differ enough.

    With *same_model* only pairs on the same GPUs with the same model and length of rows.
    """
    right = total = 0
    for (a, predicted_a), (b, predicted_b) in itertools.combinations(pairs, 2):
        if a.source != b.source or (same_model and _task(a) != _task(b)):
            continue
        measured = a.rate / b.rate
        if max(measured, 1 / measured) <= APART:
            continue
        total += 1
        of_prediction = (
            measured * (a.seconds / predicted_a.seconds.value) / (b.seconds / predicted_b.seconds.value)
        )
        right += (of_prediction > 1) == (measured > 1)
    return right, total


def _task(row: PublishedStep) -> tuple[str, ...]:
    return tuple(row.facts[name] for name in ("model", "seq", "gpu"))
