"""Efficiency within and across nodes, and trainings limited by the link between nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from distbench.analysis.case_summary import CaseSummary
from distbench.analysis.communication import message_bandwidths
from distbench.analysis.scaling import ScalingPoint, ScalingSeries
from distbench.core.units import format_bitrate, format_bytes, format_count

NODE_EFFICIENCY_DEFINITION = (
    "On several nodes the efficiency is a product: in a node is the efficiency of one whole node "
    "of M devices, E_M, and over nodes is the throughput of N such nodes relative to N times that "
    "of one, X_NM / (N X_M)."
)

BOTTLENECK_SHARE = 0.2
"""Share of a profiled step in exposed inter-node transfer from which on the link limits a training:
without it a step would be at least 1.25 times as fast."""
LARGE_MESSAGE_BYTES = 2**20
"""Message size in bytes from which on its bandwidth counts as that of the link: smaller messages wait for
its latency, or fit into buffers on the way."""
SATURATED_SHARE = 0.5
"""Fraction of the highest bus bandwidth of a large inter-node message below which a training's messages are
too small for the link: then latency is the limit."""


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


@dataclass(frozen=True)
class InterNodeBottleneck:
    """A training that waits for inter-node transfers more than for anything else."""

    exposed_share: float
    """Share of a profiled step in which an inter-node transfer runs that no computation hides."""
    busbw: float
    """Bus bandwidth of its inter-node collectives, in bytes per second (nccl-tests)."""
    best_busbw: float
    """Highest bus bandwidth of a large inter-node message in the run; 0: there was none."""

    @property
    def cause(self) -> str:
        """Cause of the limit, in words."""
        if not self.best_busbw:
            return "communication between nodes"
        return (
            "the link between nodes"
            if self.busbw >= SATURATED_SHARE * self.best_busbw
            else "latency between nodes"
        )

    @property
    def sentence(self) -> str:
        """Sentence that continues the name of the case and "is"."""
        other = ""
        if not self.best_busbw:
            other = (
                "; the bandwidth of the link is unknown, because no message has "
                f"{format_bytes(LARGE_MESSAGE_BYTES)} or more"
            )
        elif self.busbw < SATURATED_SHARE * self.best_busbw:
            other = f", where large messages reach {format_bitrate(8 * self.best_busbw)}"
        return (
            f"limited by {self.cause}: {self.exposed_share:.0%} of a profiled step is exposed "
            f"transfer between nodes, at {format_bitrate(8 * self.busbw)} bus bandwidth{other}"
        )


def inter_node_bottlenecks(rows: Sequence[CaseSummary]) -> dict[str, InterNodeBottleneck]:
    """Cases of *rows* that the inter-node link limits, by case id.

    Exposed inter-node transfer must take at least ``BOTTLENECK_SHARE`` of a profiled step, and more of it
    than exposed transfer inside nodes and than exposed waiting for slower ranks.
    """
    shares = {row.case.id: (row, share) for row in rows if row.comparable and (share := _exposed_share(row))}
    best = _best_large_message_busbw(rows) if shares else 0.0
    return {
        case_id: InterNodeBottleneck(share, _value_or_zero(row, "comm_between_busbw"), best)
        for case_id, (row, share) in shares.items()
    }


def _exposed_share(row: CaseSummary) -> float:
    """Share of a profiled step in exposed inter-node transfer; 0: unknown, or other waits are longer."""
    step, between = _value_or_zero(row, "profile_step_s"), _value_or_zero(row, "comm_between_exposed_s")
    inside = _value_or_zero(row, "comm_inside_exposed_s")
    waiting = _value_or_zero(row, "comm_exposed_s") - between - inside
    if (
        not step
        or not _value_or_zero(row, "comm_between_busbw")
        or between < max(inside, waiting, BOTTLENECK_SHARE * step)
    ):
        return 0.0
    return between / step


def _best_large_message_busbw(rows: Sequence[CaseSummary]) -> float:
    """Highest bus bandwidth of a large inter-node message; 0: there is none."""
    details = [
        row.representative_trial
        for row in rows
        if row.representative_trial and "comm_between_busbw" in row.values
    ]
    reached = [each for detail in details for each in message_bandwidths(detail) if each.nodes > 1]
    return max((each.busbw for each in reached if each.bytes >= LARGE_MESSAGE_BYTES), default=0.0)


def _value_or_zero(row: CaseSummary, column: str) -> float:
    estimate = row.values.get(column)
    return estimate.value if estimate else 0.0
