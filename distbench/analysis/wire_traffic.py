"""Bytes that a rank sends in a step, measured and by theory: the amount in which strategies compare.

Payload counts an all-reduce once, although it sends twice as much as an all-gather of the same array.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from distbench.analysis.communication import multi_rank_rows, step_count
from distbench.analysis.record_cache import cached_by_record
from distbench.core.units import format_bytes
from distbench.metrics.communication.traffic import wire_factor
from distbench.record import Record

WIRE_BYTES, WIRE_BYTES_THEORY = "comm_wire_bytes", "comm_wire_bytes_theory"
_ALGORITHMS = "as rings, the default algorithms of NCCL and gloo; mean over ranks"
COLUMN_DOCS = {
    WIRE_BYTES: f"Bytes that a rank sends in a step, by the operations that the backend ran {_ALGORITHMS}. "
    "A message counts where it is sent.",
    WIRE_BYTES_THEORY: f"Bytes that a rank should send in a step by the strategy's communication model "
    f"{_ALGORITHMS}.",
}
"""Column -> its definition. Both are derived from the tables of a record."""
_UNKNOWN_ALGORITHM = (
    "no trace shows what the backend ran (measure.profile_steps: 0), or its algorithm is unknown"
)


@dataclass(frozen=True)
class WireTraffic:
    """Bytes that a rank sends in a step by requested operation; means over ranks and profiled steps."""

    measured: Mapping[str, float] | None
    """None: the operation that the backend ran for one of them is unknown."""
    theory: Mapping[str, float] | None
    """None: the strategy has no communication model, or the size of a group is unknown."""


@cached_by_record
def wire_traffic(record: Record) -> WireTraffic:
    """Traffic of one trial on the wire."""
    return WireTraffic(_measured(record), _theory(record))


def wire_values(record: Record) -> tuple[dict[str, float], dict[str, str]]:
    """Values of ``COLUMN_DOCS`` for one trial, and the reasons for those that are not known."""
    traffic = wire_traffic(record)
    known = {WIRE_BYTES: traffic.measured, WIRE_BYTES_THEORY: traffic.theory}
    values = {name: math.fsum(by_op.values()) for name, by_op in known.items() if by_op is not None}
    reasons = {
        WIRE_BYTES: record.absent.get("comm_bytes", _UNKNOWN_ALGORITHM),
        WIRE_BYTES_THEORY: record.absent.get(
            "comm_bytes_theory", "the size of a process group or the algorithm of an operation is unknown"
        ),
    }
    return values, {name: why for name, why in reasons.items() if name not in values}


def wire_sentence(record: Record) -> str:
    """Clause that compares the bytes that a rank sends with theory; empty if they are unknown or none.

    It names collectives for which the backend ran another operation.
    """
    values, _ = wire_values(record)
    if not any(values.values()) or WIRE_BYTES not in values:
        return ""
    theory = values.get(WIRE_BYTES_THEORY)
    beside = "" if theory is None else f" (theory: {format_bytes(theory)})"
    return f"{format_bytes(values[WIRE_BYTES])} sent{beside}{_replaced_reduce_scatters(record)}"


def _replaced_reduce_scatters(record: Record) -> str:
    rows = multi_rank_rows(record)
    sizes = [row["bytes"] for row in rows if (row["op"], row.get("ran")) == ("reduce_scatter", "all_reduce")]
    if not sizes:
        return ""
    moved = format_bytes(math.fsum(sizes) / (step_count(record) or 1))
    return f", as the backend ran all_reduce for {moved} of reduce_scatter, which sends twice as much"


def sent_bytes(row: Mapping[str, Any], device: str) -> float | None:
    """Bytes that a rank on *device* sends in the collective of *row*; None if unknown."""
    if row["op"] == "recv":
        return 0.0
    if row.get("wire_bytes") is not None:
        return float(row["wire_bytes"])
    # NCCL runs the requested operation; gloo may run an all-reduce instead, which only a trace shows
    if device == "cpu" and row["op"] == "reduce_scatter":
        return None
    factor = wire_factor(row["op"], row["group_size"])
    return None if factor is None else row["bytes"] * factor


def _measured(record: Record) -> dict[str, float] | None:
    if "comm_bytes" not in record.values:
        return None
    rows, device = multi_rank_rows(record), record.case.device
    if record.values["comm_bytes"] and not rows:
        # earlier records may have sums only
        return None
    sent = ((row["op"], sent_bytes(row, device)) for row in rows if row["op"] != "recv")
    return _sum_by_op(sent, step_count(record) or 1)


def _theory(record: Record) -> dict[str, float] | None:
    if "comm_bytes_theory" not in record.values:
        return None
    rows, group_sizes = record.tables.get("collectives_theory", []), _group_sizes(record)
    return _sum_by_op((row["op"], _theory_bytes(row, group_sizes)) for row in rows if row["op"] != "recv")


def _sum_by_op(sizes: Iterable[tuple[str, float | None]], steps: int = 1) -> dict[str, float] | None:
    """Bytes per step by operation; None if any is unknown."""
    found: dict[str, float] = {}
    for op, size in sizes:
        if size is None:
            return None
        found[op] = found.get(op, 0.0) + size / steps
    return found


def _theory_bytes(row: Mapping[str, Any], group_sizes: Mapping[str | None, int]) -> float | None:
    ranks = group_sizes.get(row.get("dimension"))
    factor = None if ranks is None else wire_factor(row["op"], ranks)
    return None if factor is None else row["bytes"] * factor


def _group_sizes(record: Record) -> dict[str | None, int]:
    """Dimension of the device mesh -> ranks of its groups; None: all ranks."""
    rows = multi_rank_rows(record)
    measured = {row["dimension"]: row["group_size"] for row in rows if row.get("dimension")}
    expected = {row.get("dimension") for row in record.tables.get("collectives_theory", [])}
    everywhere = record.case.world_size
    # a mesh of one dimension has all ranks in it
    alone = {name: everywhere for name in expected if len(expected) == 1}
    return {**alone, **measured, None: everywhere}
