"""Split scaling efficiency into within-node and across-node parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from distbench.analysis.scaling import ScalingPoint, ScalingSeries
from distbench.core.units import format_count

NODE_EFFICIENCY_DEFINITION = (
    "On several nodes the efficiency is a product: in a node is the efficiency of one whole node "
    "of M devices, E_M, and over nodes is the throughput of N such nodes relative to N times that "
    "of one, X_NM / (N X_M)."
)
_MAX_SERIES = 4


@dataclass(frozen=True)
class NodeEfficiency:
    """Efficiency at one world size on several nodes: the product of ``within_node`` and ``across_nodes``."""

    nodes: int
    devices_per_node: int
    """Ranks on a full node."""
    within_node: float
    """Efficiency of one full node."""
    across_nodes: float
    """``X_NM / (N X_M)`` with X in tokens/s, N nodes and M ranks on each."""
    across_low: float
    """Lower end of the 95% interval of ``across_nodes``; ``across_nodes`` itself if the spread is unknown."""
    across_high: float


def node_count(point: ScalingPoint) -> int:
    """Number of nodes that the ranks at *point* were on."""
    return max(1, len(point.row.representative_trial.nodes)) if point.row.representative_trial else 1


def node_efficiency(series: ScalingSeries, point: ScalingPoint) -> NodeEfficiency | str:
    """Split the efficiency at *point* of *series*, or return the reason why it can't be split."""
    nodes = node_count(point)
    if nodes == 1 or not point.row.representative_trial:
        return "all ranks are on one node"
    counts = {len(ranks) for ranks in point.row.representative_trial.nodes.values()}
    if len(counts) > 1:
        return f"its nodes have different numbers of ranks: {', '.join(map(str, sorted(counts)))}"
    (of_one,) = counts
    whole = next((one for one in series.points if one.world_size == of_one and node_count(one) == 1), None)
    if whole is None:
        return f"no trial ran on exactly one node ({format_count(of_one, 'device')})"
    here, alone = point.throughput.interval, whole.throughput.interval
    assert here and alone, "a summary gives every pace above 0 an interval"
    ratio = here.ratio(alone)
    between, low, high = (value / nodes for value in (ratio.value, ratio.low, ratio.high))
    return NodeEfficiency(nodes, of_one, whole.efficiency, between, low, high)


def node_efficiency_sentence(scaling: Sequence[ScalingSeries]) -> str:
    """Sentence with the split efficiency of each series at its largest size.

    Empty if no series goes beyond a node of several devices.
    """
    found = []
    for series in sorted(scaling, key=lambda each: -each.points[-1].throughput.value):
        at = node_efficiency(series, series.points[-1])
        # with one device per node it would repeat the efficiency
        if isinstance(at, NodeEfficiency) and at.devices_per_node > 1:
            found.append(
                f"{series.name} {at.within_node:.2f} on one node "
                f"({format_count(at.devices_per_node, 'device')}), {at.across_nodes:.2f} across "
                f"{at.nodes} nodes"
            )
    more = f"; {len(found) - _MAX_SERIES} more are in the table" if len(found) > _MAX_SERIES else ""
    told = "; ".join(found[:_MAX_SERIES])
    return f"Efficiency within and across nodes: {told}{more}." if found else ""
