"""Traffic between ranks by kind of collective, with its times and bandwidth."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from distbench.grouping import grouped
from distbench.metrics.communication.traffic import bus_factor
from distbench.record import Record


@dataclass(frozen=True)
class Traffic:
    """One kind of collective in one step of a rank; means over ranks and profiled steps."""

    op: str
    """As asked for."""
    ran: str
    """What the backend ran for it; empty if the trace does not show it."""
    group_size: int
    dtype: str
    calls: float
    bytes: float
    """Payload: full arrays, as nccl-tests counts."""
    wire_bytes: float | None
    """Bytes that a rank sends, by the algorithm of what ran."""
    seconds: float | None
    transfer_s: float | None
    wait_s: float | None
    exposed_s: float | None

    @property
    def algbw(self) -> float | None:
        """Algorithm bandwidth in bytes per second: payload over transfer time (nccl-tests)."""
        return self.bytes / self.transfer_s if self.transfer_s else None

    @property
    def busbw(self) -> float | None:
        """Bus bandwidth in bytes per second: ``algbw`` times the factor of the operation (nccl-tests)."""
        factor = bus_factor(self.op, self.group_size)
        return None if self.algbw is None or factor is None else self.algbw * factor


def traffic(record: Record) -> list[Traffic]:
    """Traffic of one trial by operation, group size and dtype, largest first."""
    rows = moving(record)
    steps = steps_of(rows)
    kinds = grouped(rows, lambda row: (row["op"], row.get("ran") or "", row["group_size"], row["dtype"]))
    unsorted = [_traffic(kind, same, steps) for kind, same in kinds.items()]
    return sorted(unsorted, key=lambda kind: -kind.bytes)


def _traffic(kind: tuple[str, str, int, str], rows: Sequence[dict[str, Any]], steps: int) -> Traffic:
    def mean(column: str) -> float | None:
        values = [row.get(column) for row in rows]
        known = [value for value in values if value is not None]
        return math.fsum(known) / steps if len(known) == len(values) else None

    means = map(mean, ("wire_bytes", "seconds", "transfer_s", "wait_s", "exposed_s"))
    return Traffic(*kind, len(rows) / steps, mean("bytes") or 0.0, *means)


@dataclass(frozen=True)
class Bandwidth:
    """What collectives of one kind and one message size reached in a trial."""

    op: str
    group_size: int
    bytes: float
    """Payload of one message, in bytes."""
    busbw: float
    """Median over calls, ranks and profiled steps, in bytes per second."""
    calls: int


def bandwidths(record: Record) -> list[Bandwidth]:
    """Bus bandwidth by message size: payload over transfer time, times nccl-tests' factor."""
    found: dict[tuple[str, int, float], list[float]] = {}
    for row in moving(record):
        factor, seconds = bus_factor(row["op"], row["group_size"]), row.get("transfer_s")
        if factor and seconds and row["bytes"]:
            reached = row["bytes"] / seconds * factor
            found.setdefault((row["op"], row["group_size"], row["bytes"]), []).append(reached)
    return [Bandwidth(*key, statistics.median(values), len(values)) for key, values in found.items()]


def moving(record: Record) -> list[dict[str, Any]]:
    """Rows of all collectives except those of groups of one rank, which move nothing."""
    rows = record.tables.get("collectives", [])
    # records of format 1 may hold sums instead of single collectives; those have no place in a step
    return [row for row in rows if "place" in row and row["group_size"] > 1]


def steps_of(rows: Iterable[dict[str, Any]]) -> int:
    """Number of steps of ranks in *rows*."""
    return len({(row["rank"], row["step"]) for row in rows})
