"""``network``: what nodes really send each other, beside what theory says must cross between them."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from distbench.core.columns import TableColumn, TableSpec, columns_of
from distbench.core.grouping import group_pairs
from distbench.metrics.base import Metric, NotAvailable, PassContext, TrialData, Values, value_or_reason
from distbench.metrics.communication.traffic import inter_node_bytes, parse_ranks
from distbench.metrics.network import counters
from distbench.system.network_interfaces import GLOO_VARIABLE, NCCL_VARIABLE

_INTERFACE_VARIABLES = {"cpu": GLOO_VARIABLE, "cuda": NCCL_VARIABLE}
"""Device -> variable with the interface of its process groups; set by agents."""
_WINDOW = (
    "read by the first rank of each node right before the ranks start the timed window together and "
    "right after its end, over the timed steps; of the node with the most. It includes all traffic of "
    "the interface: headers, messages of agents and file systems, other programs"
)
_TABLE = TableSpec(
    "network",
    "One row per interface and node: its traffic in the timed window, read by the first rank of the node.",
    (
        TableColumn("interface", "varchar", "eth0; of an InfiniBand port mlx5_0/1."),
        TableColumn("kind", "varchar", "socket: the interface of the process groups' sockets; infiniband."),
        TableColumn("sent", "bigint", "Bytes that it sent in the timed window.", "B"),
        TableColumn("received", "bigint", "Bytes that it received in the timed window.", "B"),
        TableColumn("reason", "varchar", "Reason why there are no counters; null if there are."),
    ),
)


@dataclass(frozen=True)
class Network(Metric):
    """Bytes through the network interfaces of each node in the timed window, beside theory.

    Nothing is read where all ranks are on one node.
    """

    passes = frozenset({"time"})
    tables = (_TABLE,)
    columns = (
        *columns_of("B", None, "first")(
            node_sent_bytes="Bytes that a node sends in a step: bytes through the interface of the process "
            f"groups' sockets (/proc/net/dev) and port_xmit_data of the InfiniBand ports (sysfs), {_WINDOW}.",
            node_received_bytes="Bytes that a node receives in a step: by the same interface and ports, "
            f"{_WINDOW}.",
            node_bytes_theory="Bytes that must leave a node in a step, of the node with the most: the "
            "executed collectives between nodes, as rings in which the ranks of a node are neighbours, "
            "so that one hop of each ring leaves each node; for an all-to-all, the data for other "
            "nodes.",
        ),
    )

    def start(self, context: PassContext) -> Any:
        return _read_counters(context) if _is_node_leader(context) else None

    def values(self, context: PassContext, state: Any) -> Values:
        if _is_node_leader(context):
            context.tables["network"] = _rows(state, _read_counters(context))
        return {}

    def summary(self, trial: TrialData) -> dict[str, float | NotAvailable]:
        if len(trial.nodes) < 2:
            raise NotAvailable("all ranks are on one node")
        return {
            "node_sent_bytes": value_or_reason(lambda: _max_bytes(trial, "sent")),
            "node_received_bytes": value_or_reason(lambda: _max_bytes(trial, "received")),
            "node_bytes_theory": value_or_reason(lambda: max(_theory(trial).values())),
        }


def _is_node_leader(context: PassContext) -> bool:
    """True if this rank reads the counters of its node: the first rank on each of several nodes."""
    return len(set(context.nodes)) > 1 and context.nodes.index(context.nodes[context.rank]) == context.rank


def _read_counters(context: PassContext) -> dict[str, counters.InterfaceCounter] | str:
    """Read the counters of this node; return the reason if there are none."""
    variable = _INTERFACE_VARIABLES[context.device.type]
    interface = os.environ.get(variable, "")
    if not interface:
        return f"{variable} is not set, so the interface in use is unknown"
    try:
        return counters.read_counters(interface)
    except LookupError:
        # it may be a list or a pattern, from which the backend chooses
        return f"{variable} = {interface} is not the name of one interface with counters"


def _rows(
    before: dict[str, counters.InterfaceCounter] | str, after: dict[str, counters.InterfaceCounter] | str
) -> list[dict[str, Any]]:
    if isinstance(before, str) or isinstance(after, str):
        return [{"reason": before if isinstance(before, str) else after}]
    moved = counters.counter_differences(before, after)
    return [{"interface": name, **vars(counter), "reason": None} for name, counter in moved.items()]


def _max_bytes(trial: TrialData, way: str) -> float:
    """Bytes per step in direction *way*, of the node with the most."""
    rows, steps = trial.tables.get("network", []), len((trial.samples.get("step_s") or [[]])[0])
    if reason := next((row["reason"] for row in rows if row.get("reason")), ""):
        raise NotAvailable(reason)
    by_node = group_pairs((row["rank"], row[way]) for row in rows)
    if len(by_node) < len(trial.nodes) or not steps:
        raise NotAvailable("some nodes have not read their counters")
    return max(map(math.fsum, by_node.values())) / steps


def _theory(trial: TrialData) -> dict[str, float]:
    """Node -> bytes that must leave it per step."""
    every = trial.tables.get("collectives", [])
    rows = [row for row in every if row["group_size"] > 1]
    if not rows:
        raise NotAvailable("needs the metric communication")
    node_of = {rank: name for name, ranks in trial.nodes.items() for rank in ranks}
    # in some steps of local SGD nothing leaves a rank
    steps = len({row["step"] for row in every})
    sent = group_pairs((node_of[row["rank"]], _bytes_leaving_node(row, node_of)) for row in rows)
    return {name: math.fsum(sizes) / steps for name, sizes in sent.items()}


def _bytes_leaving_node(row: Mapping[str, Any], node_of: Mapping[int, str]) -> float:
    if not row.get("ran"):
        raise NotAvailable("needs the metric profile, which records the operations of the backend")
    nodes = {rank: node_of[rank] for rank in parse_ranks(row["group"])}
    size = inter_node_bytes(row["ran"], row["bytes"], row["rank"], nodes)
    if size is None:
        raise NotAvailable(f"the route of a {row['ran']} is unknown")
    return size
