"""What a training gets out of the link, next to what the same collectives reach alone in the same run."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from distbench.analysis.collectives import Result
from distbench.analysis.communication import Traffic, moving, nodes_of
from distbench.core.case import TORCH_NAMES
from distbench.core.grouping import grouped
from distbench.core.units import bytes_text
from distbench.metrics.communication.traffic import SCALAR
from distbench.record import Record


class Kind(NamedTuple):
    """Collectives that the same links carry in the same way."""

    op: str
    dtype: str
    """As torch calls it."""
    group_size: int
    nodes: int


@dataclass(frozen=True)
class Attained:
    """Share of the bandwidth of collectives alone that a training reaches with the same messages."""

    share: float | None
    reason: str = ""
    """Why it is not known."""


@dataclass(frozen=True)
class Alone:
    """Time of single collectives that nothing else ran beside, by kind and size."""

    curves: dict[Kind, list[tuple[int, float]]]
    """Kind -> size in bytes and seconds of a call, the smallest size first."""

    @classmethod
    def of(cls, results: Sequence[Result], world_size: int) -> Alone:
        """Curves of the *results* on *world_size* devices."""
        same = [each for each in results if each.key.world_size == world_size]
        found = grouped((each for each in same if each.key.dtype in TORCH_NAMES), _kind)
        return cls(
            {kind: sorted((each.key.bytes, each.seconds) for each in same) for kind, same in found.items()}
        )

    def attained(self, record: Record, kind: Traffic) -> Attained:
        """What the training of *record* attains in its collectives of that *kind*.

        The time that its messages take alone, over the time in which they moved in the training
        (``transfer_s``, when nobody waited any more). Times of sizes between two measured ones are
        interpolated; beyond the measured sizes nothing is known.
        """
        curve = self.curves.get(Kind(kind.op, kind.dtype, kind.group_size, kind.nodes))
        if not curve:
            return Attained(None, "the run has no such collective alone (collectives in the suite)")
        rows = [
            row
            for row in moving(record)
            if (row["op"], row["dtype"], row["group_size"], nodes_of(row))
            == (kind.op, kind.dtype, kind.group_size, kind.nodes)
            and (row.get("ran") or "", row.get("dimension")) == (kind.ran, kind.dimension)
            and row["bytes"] > SCALAR
        ]
        moved = [row.get("transfer_s") for row in rows]
        known = [seconds for seconds in moved if seconds]
        if not known or len(known) < len(moved):
            return Attained(None, "the times of single collectives are not known")
        alone = [_at(curve, row["bytes"]) for row in rows]
        times = [seconds for seconds in alone if seconds is not None]
        if len(times) < len(alone):
            sizes = f"{bytes_text(curve[0][0])} to {bytes_text(curve[-1][0])}"
            return Attained(None, f"some of its messages are not within the sizes measured alone ({sizes})")
        return Attained(math.fsum(times) / math.fsum(known))


def _kind(result: Result) -> Kind:
    key = result.key
    return Kind(key.op, TORCH_NAMES[key.dtype], key.group_size, key.nodes)


def _at(curve: Sequence[tuple[int, float]], size: float) -> float | None:
    """Seconds of a message of *size* bytes: latency and bandwidth are linear between two sizes."""
    for (low, first), (high, last) in itertools.pairwise(curve):
        if low <= size <= high:
            return first + (last - first) * (size - low) / (high - low)
    return curve[0][1] if curve[0][0] == size else None
