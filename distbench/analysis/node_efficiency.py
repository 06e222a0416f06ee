"""Scaling efficiency taken apart at the border of a node: up to one whole node, and from there on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from distbench.analysis.scaling import Scaling, ScalingPoint
from distbench.core.units import count_text

DEFINITION = (
    "On several nodes: in a node is the efficiency of one whole node of M devices, E_M, and over nodes is "
    "what N such nodes together do, relative to what each does alone, X_NM / (N X_M), so that the efficiency "
    "is their product."
)
_MOST = 4


@dataclass(frozen=True)
class Border:
    """Efficiency at one world size on several nodes: the product of ``inside`` and ``between``."""

    nodes: int
    of_one: int
    """Ranks of a whole node."""
    inside: float
    """Efficiency of one whole node."""
    between: float
    """``X_NM / (N X_M)``, X being tokens/s, N nodes and M ranks on each."""
    low: float
    """Lower end of the 95% interval of ``between``; ``between`` itself if the spread is unknown."""
    high: float


def nodes_of(point: ScalingPoint) -> int:
    """Nodes that the ranks at *point* were on."""
    return max(1, len(point.row.detail.nodes)) if point.row.detail else 1


def border(series: Scaling, point: ScalingPoint) -> Border | str:
    """The efficiency at *point* of *series* at the border of a node, or why it can't be taken apart."""
    nodes = nodes_of(point)
    if nodes == 1 or not point.row.detail:
        return "all ranks are on one node"
    counts = {len(ranks) for ranks in point.row.detail.nodes.values()}
    if len(counts) > 1:
        return f"its nodes have different numbers of ranks: {', '.join(map(str, sorted(counts)))}"
    (of_one,) = counts
    whole = next((one for one in series.points if one.world_size == of_one and nodes_of(one) == 1), None)
    if whole is None:
        return f"no trial was on one whole node ({count_text(of_one, 'device')})"
    here, alone = point.throughput.interval, whole.throughput.interval
    assert here and alone, "a summary gives every pace above 0 an interval"
    ratio = here.ratio(alone)
    between, low, high = (value / nodes for value in (ratio.value, ratio.low, ratio.high))
    return Border(nodes, of_one, whole.efficiency, between, low, high)


def sentence(scaling: Sequence[Scaling]) -> str:
    """What becomes of the efficiency at the border of a node, of each series where it is largest.

    Empty if no series goes beyond a node of several devices.
    """
    found = []
    for series in sorted(scaling, key=lambda each: -each.points[-1].throughput.value):
        at = border(series, series.points[-1])
        # of one device on each node it would say the efficiency twice
        if isinstance(at, Border) and at.of_one > 1:
            found.append(
                f"{series.name} {at.inside:.2f} on one node of {count_text(at.of_one, 'device')}, then "
                f"{at.between:.2f} over {at.nodes} nodes"
            )
    more = f"; {len(found) - _MOST} more are in the table" if len(found) > _MOST else ""
    told = "; ".join(found[:_MOST])
    return f"Efficiency up to the border of a node and beyond: {told}{more}." if found else ""
