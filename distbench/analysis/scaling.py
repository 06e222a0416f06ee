"""How throughput grows with the number of devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from distbench.analysis.summary import THROUGHPUT, CaseSummary, Estimate


@dataclass(frozen=True)
class Point:
    """One strategy at one world size."""

    world_size: int
    throughput: Estimate
    efficiency: float
    """``X_n / (n X_1)``: throughput over n times that of one device. With the global batch fixed
    it is strong scaling efficiency (netlib ScaLAPACK: T1 / (p Tp)), with the batch per device
    fixed weak scaling efficiency (Megatron-LM, README)."""


def scaling(cases: Sequence[CaseSummary]) -> dict[str, list[Point]]:
    """Return the points of each strategy that was measured at world size 1 and at another.

    Strategies are told apart by what their cases share besides world size and batch.
    """
    groups: dict[str, list[CaseSummary]] = {}
    for row in cases:
        if THROUGHPUT in row.values:
            groups.setdefault(_key(row), []).append(row)
    found = {}
    for key, rows in groups.items():
        ordered = sorted(rows, key=lambda row: row.case.world_size)
        one = ordered[0]
        if one.case.world_size == 1 and len(ordered) > 1:
            base = one.values[THROUGHPUT].value
            found[key] = [_point(row, base) for row in ordered]
    return found


def _point(row: CaseSummary, base: float) -> Point:
    size, estimate = row.case.world_size, row.values[THROUGHPUT]
    return Point(size, estimate, estimate.value / (size * base))


def _key(row: CaseSummary) -> str:
    parts = row.case.name.split("/")
    return "/".join(part for part in parts if not part.startswith(("ws", "mb")))
