"""Value of a column in every trial, so that nobody has to believe a median."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from distbench.record import Record, Status


@dataclass(frozen=True)
class TrialValue:
    """Value in one trial."""

    round: int
    """0 for the first trial of a case."""
    value: float
    disturbed: str
    """Why it is ignored if there are clean trials; empty if it is clean."""


def trial_values(records: Sequence[Record], column: str) -> dict[str, list[TrialValue]]:
    """Finite numbers of *column* in measured trials by case id, in the order of the trials."""
    found: dict[str, list[TrialValue]] = {}
    for record in sorted(records, key=lambda record: record.round):
        value = record.values.get(column)
        if record.status is Status.MEASURED and value is not None and math.isfinite(value):
            found.setdefault(record.case_id, []).append(TrialValue(record.round, value, record.degraded))
    return found
