"""What moved between ranks: traffic by kind of collective, with its times and bandwidth."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from distbench.metrics._traffic import bus_factor
from distbench.record import Record


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


def traffic(record: Record) -> list[Traffic]:
    """Return the traffic of one trial by operation, group size and dtype, largest first."""
    rows = moving(record)
    steps = steps_of(rows)
    kinds: dict[tuple[str, str, int, str], list[dict[str, Any]]] = {}
    for row in rows:
        kinds.setdefault((row["op"], row.get("ran") or "", row["group_size"], row["dtype"]), []).append(row)
    found = [_traffic(op, ran, size, dtype, same, steps) for (op, ran, size, dtype), same in kinds.items()]
    return sorted(found, key=lambda each: -each.bytes)


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


@dataclass(frozen=True)
class Bandwidth:
    """What collectives of one kind and one message size reached in a trial."""

    op: str
    group_size: int
    bytes: float
    """Payload of one message, in bytes."""
    busbw: float
    """Median over calls, ranks and profiled steps, in bytes a second."""
    calls: int
    """How many were looked at."""


def bandwidths(record: Record) -> list[Bandwidth]:
    """Return the bus bandwidth by message size: payload over transfer time, times nccl-tests' factor."""
    found: dict[tuple[str, int, float], list[float]] = {}
    for row in moving(record):
        factor, seconds = bus_factor(row["op"], row["group_size"]), row.get("transfer_s")
        if factor and seconds and row["bytes"]:
            reached = row["bytes"] / seconds * factor
            found.setdefault((row["op"], row["group_size"], row["bytes"]), []).append(reached)
    return [Bandwidth(*key, statistics.median(values), len(values)) for key, values in found.items()]


def moving(record: Record) -> list[dict[str, Any]]:
    """Return the rows of all collectives but those of groups of one rank, which move nothing."""
    rows = record.tables.get("collectives", [])
    # records of format 1 may hold sums instead of single collectives; they have no place in a step
    return [row for row in rows if "place" in row and row["group_size"] > 1]


def steps_of(rows: Iterable[dict[str, Any]]) -> int:
    """Return how many steps of ranks the rows tell of."""
    return len({(row["rank"], row["step"]) for row in rows})
