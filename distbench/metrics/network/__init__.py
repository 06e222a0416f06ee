"""``network``: what nodes really send each other, beside what theory says must cross between them."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from distbench.core.columns import TableColumn, TableSpec, alike
from distbench.core.grouping import gathered
from distbench.metrics.base import Absent, Metric, Session, Trial, Values, or_absent
from distbench.metrics.communication.traffic import crossing, ranks_of
from distbench.metrics.network import counters

_VARIABLES = {"cpu": "GLOO_SOCKET_IFNAME", "cuda": "NCCL_SOCKET_IFNAME"}
"""Device -> the variable that names the interface of its process groups; agents set it."""
_WINDOW = (
    "read by the first rank of each node right before the ranks start the timed window together and right "
    "after its end, over the timed steps; of the node that has most. All that the interface carries is "
    "in it: headers, the agents' and the file system's messages, other programs"
)
_TABLE = TableSpec(
    "network",
    "One row an interface and node: what it carried in the timed window. Left by the node's first rank.",
    (
        TableColumn("interface", "varchar", "eth0; of an InfiniBand port mlx5_0/1."),
        TableColumn("kind", "varchar", "socket: the interface of the process groups' sockets; infiniband."),
        TableColumn("sent", "bigint", "Bytes that it sent in the timed window.", "B"),
        TableColumn("received", "bigint", "Bytes that it received in the timed window.", "B"),
        TableColumn("reason", "varchar", "Why there are no counters; null if there are."),
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
        *alike("B", None, "first")(
            node_sent_bytes="Bytes that a node sends in a step: bytes through the interface of the process "
            f"groups' sockets (/proc/net/dev) and port_xmit_data of the InfiniBand ports (sysfs), {_WINDOW}.",
            node_received_bytes="Bytes that a node receives in a step: by the same interface and ports, "
            f"{_WINDOW}.",
            node_bytes_theory="Bytes that must leave a node in a step, of the node that has most: the "
            "collectives between nodes as they ran, by rings on which the ranks of a node follow one "
            "another, so that one hop of each ring leaves each node; of an all-to-all what is for others.",
        ),
    )

    def start(self, session: Session) -> Any:
        return _read(session) if _speaks(session) else None

    def values(self, session: Session, state: Any) -> Values:
        if _speaks(session):
            session.tables["network"] = _rows(state, _read(session))
        return {}

    def summary(self, trial: Trial) -> dict[str, float | Absent]:
        if len(trial.nodes) < 2:
            raise Absent("all ranks are on one node")
        return {
            "node_sent_bytes": or_absent(lambda: _most(trial, "sent")),
            "node_received_bytes": or_absent(lambda: _most(trial, "received")),
            "node_bytes_theory": or_absent(lambda: max(_theory(trial).values())),
        }


def _speaks(session: Session) -> bool:
    """Whether this rank reads the counters of its node: the first on each of several nodes."""
    return len(set(session.nodes)) > 1 and session.nodes.index(session.nodes[session.rank]) == session.rank


def _read(session: Session) -> dict[str, counters.Counter] | str:
    """The counters of this node, or why there are none."""
    variable = _VARIABLES[session.device.type]
    interface = os.environ.get(variable, "")
    if not interface:
        return f"{variable} is not set, so the interface in use is not known"
    try:
        return counters.read(interface)
    except LookupError:
        # it may be a list or a pattern, from which the backend chooses
        return f"{variable} = {interface} is not the name of one interface with counters"


def _rows(
    before: dict[str, counters.Counter] | str, after: dict[str, counters.Counter] | str
) -> list[dict[str, Any]]:
    if isinstance(before, str) or isinstance(after, str):
        return [{"reason": before if isinstance(before, str) else after}]
    moved = counters.between(before, after)
    return [{"interface": name, **vars(counter), "reason": None} for name, counter in moved.items()]


def _most(trial: Trial, way: str) -> float:
    """Bytes of a step that went that *way*, of the node that has most."""
    rows, steps = trial.tables.get("network", []), len((trial.samples.get("step_s") or [[]])[0])
    if reason := next((row["reason"] for row in rows if row.get("reason")), ""):
        raise Absent(reason)
    by_node = gathered((row["rank"], row[way]) for row in rows)
    if len(by_node) < len(trial.nodes) or not steps:
        raise Absent("not every node has read its counters")
    return max(map(math.fsum, by_node.values())) / steps


def _theory(trial: Trial) -> dict[str, float]:
    """Node -> bytes that must leave it in a step."""
    every = trial.tables.get("collectives", [])
    rows = [row for row in every if row["group_size"] > 1]
    if not rows:
        raise Absent("needs the metric communication")
    node_of = {rank: name for name, ranks in trial.nodes.items() for rank in ranks}
    # in some steps of local SGD nothing leaves a rank
    steps = len({row["step"] for row in every})
    sent = gathered((node_of[row["rank"]], _crossing(row, node_of)) for row in rows)
    return {name: math.fsum(sizes) / steps for name, sizes in sent.items()}


def _crossing(row: Mapping[str, Any], node_of: Mapping[int, str]) -> float:
    if not row.get("ran"):
        raise Absent("needs the metric profile, which sees what the backend runs")
    nodes = {rank: node_of[rank] for rank in ranks_of(row["group"])}
    size = crossing(row["ran"], row["bytes"], row["rank"], nodes)
    if size is None:
        raise Absent(f"which ranks a {row['ran']} reaches is not known")
    return size
