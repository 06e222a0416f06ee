"""What moved between ranks: traffic by kind of collective, and its volume against the textbook's."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from distbench.metrics._traffic import bus_factor
from distbench.record import Record
from distbench.units import bytes_text

SCALAR = 1024
"""Bytes; a collective no larger than this carries a norm or a flag."""
EXPLAINED = 0.01
"""Share of the textbook's volume that may stay without a known cause."""


@dataclass(frozen=True)
class Traffic:
    """One kind of collective in one step of a rank; means over ranks and profiled steps."""

    op: str
    """As asked for."""
    ran: str
    """What the backend ran for it; empty if the trace does not tell."""
    group_size: int
    dtype: str
    calls: float
    bytes: float
    """Payload: full arrays, as nccl-tests counts."""
    wire_bytes: float | None
    """What a rank sends, by the algorithm of what ran."""
    seconds: float | None
    transfer_s: float | None
    wait_s: float | None
    exposed_s: float | None

    @property
    def algbw(self) -> float | None:
        """Algorithm bandwidth in bytes a second: payload over transfer time (nccl-tests)."""
        return self.bytes / self.transfer_s if self.transfer_s else None

    @property
    def busbw(self) -> float | None:
        """Bus bandwidth in bytes a second: ``algbw`` times the factor of the operation (nccl-tests)."""
        factor = bus_factor(self.op, self.group_size)
        return None if self.algbw is None or factor is None else self.algbw * factor


@dataclass(frozen=True)
class Cause:
    """Why a volume differs from the textbook's."""

    text: str
    bytes: float
    """Signed: what it adds to the textbook's volume."""


@dataclass(frozen=True)
class Volume:
    """Payload of a rank's step by operation, measured and by the textbook, and why they differ."""

    measured: dict[str, float]
    theory: dict[str, float]
    causes: tuple[Cause, ...] = ()
    left: dict[str, float] = field(default_factory=dict)
    """Operation -> bytes that no cause explains, signed."""

    @property
    def unexplained(self) -> float:
        """Share of the textbook's volume that no cause explains."""
        whole = sum(self.theory.values()) or 1.0
        return sum(abs(size) for size in self.left.values()) / whole

    @property
    def reduces_whole(self) -> bool:
        """Whether gradients were all-reduced where the textbook reduce-scatters them."""
        return "reduce_scatter" in self.theory and "reduce_scatter" not in self.measured


def traffic(record: Record) -> list[Traffic]:
    """Return the traffic of one trial by operation, group size and dtype, largest first."""
    rows = [row for row in record.tables.get("collectives", []) if row["group_size"] > 1]
    steps = len({(row["rank"], row["step"]) for row in rows})
    kinds: dict[tuple[str, str, int, str], list[dict[str, Any]]] = {}
    for row in rows:
        kinds.setdefault((row["op"], row.get("ran") or "", row["group_size"], row["dtype"]), []).append(row)
    found = [_traffic(op, ran, size, dtype, same, steps) for (op, ran, size, dtype), same in kinds.items()]
    return sorted(found, key=lambda each: -each.bytes)


def volume(record: Record) -> Volume | None:
    """Return the volume of one trial against the textbook; None if its strategy has no theory."""
    if "comm_bytes_theory" not in record.values:
        return None
    theory = {row["op"]: row["bytes"] for row in record.tables.get("collectives_theory", [])}
    measured = _by_op(traffic(record))
    standing = record.values.get("comm_standing_bytes", 0.0) if "all_gather" in theory else 0.0
    causes, left = [], {op: measured.get(op, 0.0) - theory.get(op, 0.0) for op in {**theory, **measured}}
    if "reduce_scatter" in theory and "reduce_scatter" not in measured and measured.get("all_reduce"):
        moved = min(theory["reduce_scatter"], measured["all_reduce"] - theory.get("all_reduce", 0.0))
        causes.append(
            Cause(
                f"{bytes_text(moved)} of gradients were all-reduced and not reduce-scattered: the same "
                "payload, twice the bytes on the wire",
                0.0,
            )
        )
        left["reduce_scatter"] += moved
        left["all_reduce"] -= moved
    if standing:
        causes.append(
            Cause(f"{bytes_text(standing)} stood whole already and were not gathered again", -standing)
        )
        left["all_gather"] += standing
    left, scalars = _without_scalars(record, left)
    if scalars:
        causes.append(Cause(f"{bytes_text(scalars)} of norms and flags", scalars))
    return Volume(measured, theory, tuple(causes), {op: size for op, size in left.items() if size})


def explanation(record: Record) -> str:
    """Return in words how the volume of a trial compares with the textbook; empty where nothing moves."""
    found = volume(record)
    if found is None:
        return f"no theory to compare with: {record.absent.get('comm_bytes_theory', 'not measured')}."
    if not found.theory and not found.measured:
        return ""
    told = [f"{bytes_text(sum(found.measured.values()))} moved, {_theory_text(found.theory)}"]
    told += [cause.text for cause in found.causes]
    if found.unexplained > EXPLAINED:
        left = ", ".join(f"{_signed(size)} {op}" for op, size in found.left.items())
        told.append(f"no known cause for {left}{_hint(record, found)}")
    return "; ".join(told) + "."


def _hint(record: Record, found: Volume) -> str:
    if record.effective.get("zero_stage") == 3 and found.left.get("all_gather", 0) > 0:
        return (
            " (ZeRO-3 releases parameters inside a pass once more than max_live_parameters stand, and "
            "gathers them again)"
        )
    return ""


def _theory_text(theory: dict[str, float]) -> str:
    parts = " and ".join(f"{op} {bytes_text(size)}" for op, size in theory.items())
    return f"by the textbook {bytes_text(sum(theory.values()))}" + (f" ({parts})" if parts else "")


def _signed(size: float) -> str:
    return f"{'+' if size > 0 else '−'}{bytes_text(abs(size))}"


def _traffic(
    op: str, ran: str, group_size: int, dtype: str, rows: Sequence[dict[str, Any]], steps: int
) -> Traffic:
    def mean(column: str) -> float | None:
        values = [row.get(column) for row in rows]
        known = [value for value in values if value is not None]
        return math.fsum(known) / steps if len(known) == len(values) else None

    return Traffic(
        op=op,
        ran=ran,
        group_size=group_size,
        dtype=dtype,
        calls=len(rows) / steps,
        bytes=mean("bytes") or 0.0,
        wire_bytes=mean("wire_bytes"),
        seconds=mean("seconds"),
        transfer_s=mean("transfer_s"),
        wait_s=mean("wait_s"),
        exposed_s=mean("exposed_s"),
    )


def _by_op(rows: Iterable[Traffic]) -> dict[str, float]:
    found: dict[str, float] = {}
    for row in rows:
        found[row.op] = found.get(row.op, 0.0) + row.bytes
    return found


def _without_scalars(record: Record, left: dict[str, float]) -> tuple[dict[str, float], float]:
    """Return *left* without the collectives that carry norms and flags, and the bytes of those."""
    rows = [row for row in record.tables.get("collectives", []) if row["group_size"] > 1]
    steps = len({(row["rank"], row["step"]) for row in rows}) or 1
    small: dict[str, float] = {}
    for row in rows:
        if row["bytes"] <= SCALAR and left.get(row["op"], 0.0) > 0:
            small[row["op"]] = small.get(row["op"], 0.0) + row["bytes"] / steps
    taken = {op: min(size, left[op]) for op, size in small.items()}
    return {op: size - taken.get(op, 0.0) for op, size in left.items()}, sum(taken.values())
