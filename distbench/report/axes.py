"""Axes shared by charts: cases by number of devices, and round ticks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from distbench.analysis.case_summary import CaseSummary
from distbench.core.units import format_bytes, format_count

_MAX_TICKS, _MAX_DECADES = 8, 3


@dataclass(frozen=True)
class CaseAxis:
    """Rows of a vertical axis: one for each case, below a heading for each number of devices."""

    labels: list[str]
    positions: list[int]
    """Indices of the cases among the labels."""

    @classmethod
    def of(cls, cases: Iterable[tuple[CaseSummary, str]]) -> CaseAxis:
        """Rows for *cases* with their labels; cases come ordered by number of devices."""
        listed = [*cases]
        labels: list[str] = []
        places: list[int] = []
        several = len({row.case.world_size for row, _ in listed}) > 1
        last = 0
        for row, label in listed:
            if several and row.case.world_size != last:
                last = row.case.world_size
                labels.append(f"{format_count(last, 'device')}:")
            places.append(len(labels))
            labels.append(label)
        return cls(labels, places)


def byte_ticks(sizes: Iterable[float]) -> dict[str, Any]:
    """Ticks of a logarithmic axis of bytes, at powers of two, in KiB and MiB."""
    known = [size for size in sizes if size > 0]
    if not known:
        return {}
    low, high = math.floor(math.log2(min(known))), math.ceil(math.log2(max(known)))
    every = max(1, -(-(high - low) // _MAX_TICKS))
    ticks = [2.0**power for power in range(low, high + 1, every)]
    return {
        "tickvals": ticks,
        "ticktext": [format_bytes(tick).replace(".00", "").replace(".0", "") for tick in ticks],
    }


def log_ticks(values: Iterable[float]) -> dict[str, Any]:
    """Ticks of a logarithmic axis at 1, 2 and 5 of each power of ten, or at the powers alone."""
    known = [value for value in values if value > 0]
    if not known:
        return {}
    low, high = math.floor(math.log10(min(known))), math.ceil(math.log10(max(known)))
    digits = (1, 2, 5) if high - low <= _MAX_DECADES else (1,)
    ticks = [digit * 10.0**power for power in range(low, high + 1) for digit in digits]
    return {"tickvals": ticks, "ticktext": [f"{tick:.12g}" for tick in ticks]}
