"""Loss curve of a trial from the samples of its ranks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import zip_longest

from distbench.record import Record


def mean_losses(record: Record) -> list[float | None]:
    """Loss of each step of a trial, from its first warm-up step on, mean over ranks."""
    timed = record.samples.get("loss", [])
    # without warm-up steps a record may lack their list
    ranks = [[*(warm or []), *(rest or [])] for warm, rest in zip_longest(record.warmup_losses, timed)]
    return [_mean(step) for step in zip_longest(*ranks)]


def finite_values(values: Iterable[float | None]) -> list[float]:
    """Finite numbers in *values*."""
    return [value for value in values if value is not None and math.isfinite(value)]


def _mean(values: Sequence[float | None]) -> float | None:
    known = finite_values(values)
    return math.fsum(known) / len(known) if len(known) == len(values) else None
