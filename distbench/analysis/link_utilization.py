"""Compare the collectives of a training with the same ones measured alone in the same run."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from distbench.analysis.collectives import CollectiveResult
from distbench.analysis.communication import CollectiveTraffic, group_node_count, multi_rank_rows
from distbench.core.case import TORCH_DTYPE_NAMES
from distbench.core.grouping import group_by
from distbench.core.units import format_bytes
from distbench.metrics.communication.traffic import SCALAR_BYTES
from distbench.record import Record


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
