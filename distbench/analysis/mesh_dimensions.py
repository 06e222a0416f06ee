"""What moves over each dimension of a device mesh: bytes and numbers of calls, measured and by theory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from distbench.analysis.communication import EXPLAINED, moving, steps_of
from distbench.core.grouping import grouped
from distbench.core.units import bytes_text
from distbench.metrics.communication.traffic import SCALAR
from distbench.record import Record

_NEARLY = 1e-6
"""Of a mean over ranks, what rounding may leave."""


@dataclass(frozen=True)
class OverDimension:
    """Collectives of one operation over one dimension, in one step of a rank; means over ranks and steps."""

    dimension: str
    op: str
    measured: float
    """Payload in bytes."""
    theory: float | None
    calls: float
    calls_theory: float | None
    small: float
    """Of the calls those that move no more than a norm or a flag."""

    @property
    def surplus(self) -> float:
        """Bytes more than theory has (less: negative)."""
        return self.measured - (self.theory or 0.0)

    @property
    def unexplained_calls(self) -> float:
        """Calls more than theory has (less: negative) that are not norms and flags; 0 where it has none."""
        if self.calls_theory is None:
            return 0.0
        more = self.calls - self.calls_theory
        left = max(0.0, more - self.small) if more > 0 else more
        return left if abs(left) > _NEARLY else 0.0

    def __str__(self) -> str:
        return f"{self.op} over {self.dimension}"


def over_dimensions(record: Record) -> list[OverDimension]:
    """What moved over each dimension in a trial, and should have; empty if its records don't say over which.

    Ordered by dimension, in each the most bytes first.
    """
    rows = [row for row in moving(record) if row.get("dimension")]
    theory = [row for row in record.tables.get("collectives_theory", []) if row.get("dimension")]
    if not rows:
        return []
    steps = steps_of(record)
    measured = grouped(rows, lambda row: (row["dimension"], row["op"]))
    expected = grouped(theory, lambda row: (row["dimension"], row["op"]))
    keys = dict.fromkeys([*expected, *measured])
    # of a dimension of which theory counts the calls it has no others than it names
    counted = {row["dimension"] for row in theory if row.get("calls") is not None}
    absent = {key: [_none(*key)] for key in measured if key[0] in counted}
    found = [_over(key, measured.get(key, []), (absent | expected).get(key), steps) for key in keys]
    return sorted(found, key=lambda each: (each.dimension, -each.measured))


def misplaced(record: Record) -> str:
    """What moved over another dimension than theory has it over; empty if nothing did.

    What an operation moves in all is compared elsewhere: here too much over one dimension stands against too
    little over another.
    """
    found = [each for each in over_dimensions(record) if each.theory is not None]
    wrong = []
    for op, same in grouped(found, lambda each: each.op).items():
        most, least = (choose(same, key=lambda each: each.surplus) for choose in (max, min))
        moved = min(most.surplus, -least.surplus)
        if moved > EXPLAINED * math.fsum(each.theory or 0.0 for each in same):
            wrong.append(
                f"{bytes_text(moved)} {op} moved over {most.dimension}, by theory over {least.dimension}"
            )
    return "; ".join(wrong)


def miscounted(record: Record) -> str:
    """Where a trial issued more or fewer collectives than theory has; empty if nowhere."""
    wrong = [each for each in over_dimensions(record) if each.unexplained_calls]
    return "; ".join(
        f"{each.calls:g} {each} per step, theory: {each.calls_theory:g}, with no known cause for "
        f"{abs(each.unexplained_calls):g} {'more' if each.unexplained_calls > 0 else 'fewer'}"
        for each in wrong
    )


def _none(dimension: str, op: str) -> dict[str, Any]:
    """Theory of what is not called at all."""
    return {"dimension": dimension, "op": op, "bytes": 0.0, "calls": 0.0}


def _over(
    key: tuple[str, str], rows: list[dict[str, Any]], theory: list[dict[str, Any]] | None, steps: int
) -> OverDimension:
    calls = [row.get("calls") for row in theory or ()]
    return OverDimension(
        *key,
        measured=sum(row["bytes"] for row in rows) / steps,
        theory=None if theory is None else math.fsum(row["bytes"] for row in theory),
        calls=len(rows) / steps,
        calls_theory=None if None in calls or not calls else math.fsum(filter(None, calls)),
        small=sum(row["bytes"] <= SCALAR for row in rows) / steps,
    )
