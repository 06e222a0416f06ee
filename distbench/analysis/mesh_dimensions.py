"""Compare bytes and calls with theory for each dimension of a device mesh."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from distbench.analysis.communication import UNEXPLAINED_TOLERANCE, multi_rank_rows, step_count
from distbench.analysis.record_cache import cached_by_record
from distbench.analysis.wire_traffic import sent_bytes
from distbench.core.grouping import group_by
from distbench.core.units import format_bytes
from distbench.metrics.communication.traffic import SCALAR_BYTES
from distbench.record import Record

_CALL_TOLERANCE = 1e-6
"""Tolerance for rounding in a mean over ranks."""


@dataclass(frozen=True)
class DimensionTraffic:
    """Collectives of one operation over one dimension, in one step of a rank; means over ranks and steps."""

    dimension: str
    op: str
    measured: float
    """Payload in bytes."""
    sent: float | None
    """Bytes that a rank sends; None if unknown."""
    theory: float | None
    calls: float
    calls_theory: float | None
    scalar_calls: float
    """Calls that move no more than a norm or a flag."""

    @property
    def surplus_bytes(self) -> float:
        """Bytes beyond theory; negative if fewer."""
        return self.measured - (self.theory or 0.0)

    @property
    def unexplained_calls(self) -> float:
        """Calls beyond theory (negative if fewer) that are not norms or flags; 0 without theory."""
        if self.calls_theory is None:
            return 0.0
        more = self.calls - self.calls_theory
        left = max(0.0, more - self.scalar_calls) if more > 0 else more
        return left if abs(left) > _CALL_TOLERANCE else 0.0

    def __str__(self) -> str:
        return f"{self.op} over {self.dimension}"


@cached_by_record
def dimension_traffic(record: Record) -> list[DimensionTraffic]:
    """Measured and expected traffic over each dimension in a trial; empty if records lack dimensions.

    Ordered by dimension, then by bytes, largest first.
    """
    rows = [row for row in multi_rank_rows(record) if row.get("dimension")]
    theory = [row for row in record.tables.get("collectives_theory", []) if row.get("dimension")]
    if not rows:
        return []
    steps = step_count(record)
    measured = group_by(rows, lambda row: (row["dimension"], row["op"]))
    expected = group_by(theory, lambda row: (row["dimension"], row.get("issued_as") or row["op"]))
    keys = dict.fromkeys([*expected, *measured])
    # if theory counts all calls of a dimension, it expects none of other operations
    counted = {row["dimension"] for row in theory} - {
        row["dimension"] for row in theory if row.get("calls") is None
    }
    absent = {key: [_no_calls(*key)] for key in measured if key[0] in counted}
    device = record.case.device
    found = [
        _dimension_traffic(key, measured.get(key, []), (absent | expected).get(key), steps, device)
        for key in keys
    ]
    return sorted(found, key=lambda each: (each.dimension, -each.measured))


def misplaced_traffic(record: Record) -> str:
    """Traffic over a different dimension than in theory, in words; empty if there is none.

    The total of each operation is compared elsewhere; this matches a surplus over one dimension with a
    deficit over another.
    """
    found = [each for each in dimension_traffic(record) if each.theory is not None]
    wrong = []
    for op, same in group_by(found, lambda each: each.op).items():
        most, least = (choose(same, key=lambda each: each.surplus_bytes) for choose in (max, min))
        moved = min(most.surplus_bytes, -least.surplus_bytes)
        if moved > UNEXPLAINED_TOLERANCE * math.fsum(each.theory or 0.0 for each in same):
            wrong.append(
                f"{format_bytes(moved)} {op} went over {most.dimension} instead of {least.dimension}"
            )
    return "; ".join(wrong)


def call_count_mismatches(record: Record) -> str:
    """Dimensions with more or fewer collectives than in theory, in words; empty if there are none."""
    wrong = [each for each in dimension_traffic(record) if each.unexplained_calls]
    return "; ".join(
        f"{each}: {each.calls:g} calls per step, theory: {each.calls_theory:g}; "
        f"{abs(each.unexplained_calls):g} {'more' if each.unexplained_calls > 0 else 'fewer'} "
        "without a known cause"
        for each in wrong
    )


def _no_calls(dimension: str, op: str) -> dict[str, Any]:
    """Theory of a collective that is never called."""
    return {"dimension": dimension, "op": op, "bytes": 0.0, "calls": 0.0}


def _dimension_traffic(
    key: tuple[str, str],
    rows: list[dict[str, Any]],
    theory: list[dict[str, Any]] | None,
    steps: int,
    device: str,
) -> DimensionTraffic:
    sent = [sent_bytes(row, device) for row in rows]
    calls = [row.get("calls") for row in theory or ()]
    return DimensionTraffic(
        *key,
        measured=sum(row["bytes"] for row in rows) / steps,
        sent=None if None in sent else math.fsum(filter(None, sent)) / steps,
        theory=None if theory is None else math.fsum(row["bytes"] for row in theory),
        calls=len(rows) / steps,
        calls_theory=None if None in calls or not calls else math.fsum(filter(None, calls)),
        scalar_calls=sum(row["bytes"] <= SCALAR_BYTES for row in rows) / steps,
    )
