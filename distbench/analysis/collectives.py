"""Stand-alone collectives over trials, and the use that a training makes of the same links.

The rows are those of ``collective_times``, which the kind of job ``collectives`` writes.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from distbench.analysis.communication import CollectiveTraffic, group_node_count, multi_rank_rows
from distbench.analysis.statistics.distributions import t_quantile
from distbench.analysis.statistics.intervals import CONFIDENCE, ConfidenceInterval
from distbench.core.case import Case
from distbench.core.dtypes import TORCH_DTYPE_NAMES
from distbench.core.grouping import group_by, group_pairs
from distbench.core.units import format_bytes, format_count
from distbench.metrics.communication.traffic import SCALAR_BYTES, bus_factor
from distbench.record import Record, RecordRow, Status

_COLLECTIVE_TIMES = "collective_times"
COLLECTIVES_JOB = "collectives"


class CollectiveKey(NamedTuple):
    """Key of a measurement: two runs compare rows with the same key."""

    device: str
    world_size: int
    group: str
    group_size: int
    nodes: int
    """Number of nodes that the ranks of the group are on."""
    op: str
    dtype: str
    bytes: int

    def __str__(self) -> str:
        return f"{self.op} of {format_bytes(self.bytes)} in {self.dtype} among {self.participants}"

    @property
    def participants(self) -> str:
        """The participating ranks, in words."""
        where = {"all": "all", "node": "in each node", "between": "one of each node"}
        on = f", on {self.nodes} nodes" if self.nodes > 1 else ""
        return f"{format_count(self.group_size, 'rank')} ({where.get(self.group, self.group)}{on})"


@dataclass(frozen=True)
class CollectiveResult:
    """One operation, dtype, size and group over the trials of a run."""

    key: CollectiveKey
    case: Case
    count: int
    """Elements, counted as in nccl-tests."""
    busbw: ConfidenceInterval
    """Bytes per second: in each trial, of the slowest group of its kind."""
    iterations: int
    """Timed calls in all trials."""
    fastest_s: float
    slowest_s: float
    wrong_elements: int | None
    """Elements with a wrong result in all trials; None if not checked."""

    @property
    def bus_factor(self) -> float:
        """Ratio of busbw to algbw."""
        return bus_factor(self.key.op, self.key.group_size) or 1.0

    @property
    def algbw(self) -> float:
        """Bytes per second."""
        return self.busbw.value / self.bus_factor

    @property
    def seconds(self) -> float:
        """Time of a call in seconds, from the mean bandwidth."""
        return self.key.bytes / self.algbw


@dataclass(frozen=True)
class UnmeasuredCollective:
    """Operation, dtype and group without any measurement, with the reason."""

    world_size: int
    op: str
    dtype: str
    group: str
    reason: str
    is_group: bool
    """True if there is no such group at all."""


def collective_results(records: Sequence[Record]) -> list[CollectiveResult]:
    """All measurements of this kind in *records*, in the order in which they were made.

    Each interval uses its own trials alone: small and large messages differ in their noise.
    """
    rows = group_pairs(_rows(records))
    return [
        _result(key, same, _bandwidth_interval(_slowest_group_by_round(same).values()))
        for key, same in rows.items()
    ]


def _bandwidth_interval(rows: Collection[RecordRow]) -> ConfidenceInterval:
    """Geometric mean of busbw over trials, with Student's interval of its logarithm."""
    logs = [math.log(row["busbw"]) for row in rows]
    mean, freedom = math.exp(statistics.fmean(logs)), len(logs) - 1
    if not freedom:
        return ConfidenceInterval(mean)
    error = statistics.stdev(logs) / math.sqrt(len(logs))
    return ConfidenceInterval(mean, t_quantile((1 + CONFIDENCE) / 2, freedom) * error, freedom, len(logs))


def unmeasured_collectives(records: Sequence[Record]) -> list[UnmeasuredCollective]:
    """Combinations that could not be measured, each once."""
    found = [
        UnmeasuredCollective(
            record.case.world_size,
            row["op"],
            row["dtype"],
            row["group"],
            row["reason"],
            is_group=row.get("group_size") is None,
        )
        for record in _measured_records(records)
        for row in record.tables.get(_COLLECTIVE_TIMES, [])
        if row.get("reason")
    ]
    return list(dict.fromkeys(found))


def _measured_records(records: Sequence[Record]) -> list[Record]:
    return [record for record in records if record.status is Status.MEASURED]


def _rows(records: Sequence[Record]) -> Iterator[tuple[CollectiveKey, tuple[Record, RecordRow]]]:
    """Rows that have a number, with their records, by key."""
    for record in _measured_records(records):
        for row in record.tables.get(_COLLECTIVE_TIMES, []):
            if not row.get("reason") and math.isfinite(row.get("busbw") or math.nan):
                what = (row["group"], row["group_size"], row.get("nodes") or 1)
                kind = (row["op"], row["dtype"], row["bytes"])
                yield CollectiveKey(record.case.device, record.case.world_size, *what, *kind), (record, row)


def _slowest_group_by_round(rows: Sequence[tuple[Record, RecordRow]]) -> Mapping[int, RecordRow]:
    """Row of the slowest group in each trial."""
    slowest_last = sorted(rows, key=lambda item: -item[1]["busbw"])
    return {record.round: row for record, row in slowest_last}


def _result(
    key: CollectiveKey, rows: Sequence[tuple[Record, RecordRow]], busbw: ConfidenceInterval
) -> CollectiveResult:
    wrong = [row.get("wrong") for _, row in rows]
    return CollectiveResult(
        key=key,
        case=rows[0][0].case,
        count=rows[0][1]["count"],
        busbw=busbw,
        iterations=sum(row["iterations"] for _, row in rows),
        fastest_s=min(row["fastest_s"] for _, row in rows),
        slowest_s=max(row["slowest_s"] for _, row in rows),
        wrong_elements=None if None in wrong else sum(filter(None, wrong)),
    )


class CollectiveKind(NamedTuple):
    """Collectives that use the same links in the same way."""

    op: str
    dtype: str
    """Name in torch."""
    group_size: int
    nodes: int


@dataclass(frozen=True)
class LinkUtilization:
    """Share of the stand-alone collective bandwidth that a training reaches with the same messages."""

    share: float | None
    reason: str = ""
    """Reason why it is unknown."""


@dataclass(frozen=True)
class CollectiveBaseline:
    """Times of collectives that ran alone, by kind and size."""

    curves: dict[CollectiveKind, list[tuple[int, float]]]
    """Kind -> size in bytes and seconds of a call, smallest size first."""

    @classmethod
    def from_results(cls, results: Sequence[CollectiveResult], world_size: int) -> CollectiveBaseline:
        """Curves of the *results* on *world_size* devices."""
        same = [each for each in results if each.key.world_size == world_size]
        found = group_by((each for each in same if each.key.dtype in TORCH_DTYPE_NAMES), _kind_of_result)
        return cls(
            {kind: sorted((each.key.bytes, each.seconds) for each in same) for kind, same in found.items()}
        )

    def utilization(self, record: Record, kind: CollectiveTraffic) -> LinkUtilization:
        """Link utilization of the training of *record* in its collectives of that *kind*.

        The time that its messages take alone, divided by the time in which they moved in the training
        (``transfer_s``, without waiting for other ranks). Times are interpolated between measured sizes;
        beyond these nothing is known.
        """
        curve = self.curves.get(CollectiveKind(kind.op, kind.dtype, kind.group_size, kind.nodes))
        if not curve:
            return LinkUtilization(
                None, "this collective was not measured alone; add a section collectives to the suite"
            )
        rows = [
            row
            for row in multi_rank_rows(record)
            if (row["op"], row["dtype"], row["group_size"], group_node_count(row))
            == (kind.op, kind.dtype, kind.group_size, kind.nodes)
            and (row.get("ran") or "", row.get("dimension")) == (kind.executed_op, kind.dimension)
            and row["bytes"] > SCALAR_BYTES
        ]
        moved = [row.get("transfer_s") for row in rows]
        known = [seconds for seconds in moved if seconds]
        if not known or len(known) < len(moved):
            return LinkUtilization(None, "the times of individual collectives are unknown")
        alone = [_interpolate_seconds(curve, row["bytes"]) for row in rows]
        times = [seconds for seconds in alone if seconds is not None]
        if len(times) < len(alone):
            sizes = f"{format_bytes(curve[0][0])} to {format_bytes(curve[-1][0])}"
            return LinkUtilization(
                None, f"some of its messages are outside the sizes that were measured alone ({sizes})"
            )
        return LinkUtilization(math.fsum(times) / math.fsum(known))


def _kind_of_result(result: CollectiveResult) -> CollectiveKind:
    key = result.key
    return CollectiveKind(key.op, TORCH_DTYPE_NAMES[key.dtype], key.group_size, key.nodes)


def _interpolate_seconds(curve: Sequence[tuple[int, float]], size: float) -> float | None:
    """Seconds of a message of *size* bytes: latency and bandwidth are linear between two sizes."""
    for (low, first), (high, last) in itertools.pairwise(curve):
        if low <= size <= high:
            return first + (last - first) * (size - low) / (high - low)
    return curve[0][1] if curve[0][0] == size else None
