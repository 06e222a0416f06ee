"""A collective, and its bandwidth and bytes on the wire as nccl-tests defines them. Without torch.

nccl-tests: github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from distbench.metrics.base import NotAvailable, SharedResult

SCALAR_BYTES = 1024
"""Bytes; a collective no larger carries a norm or a flag, and says nothing of bandwidth."""
LinkScope = Literal["inside", "between"]
LINK_SCOPES: tuple[LinkScope, ...] = ("inside", "between")
"""Inside a node: all ranks of the group are on it. Between nodes: the group spans several."""


@dataclass(frozen=True)
class CollectiveCall:
    """One collective, as issued by the strategy."""

    op: str
    """``all_reduce``, ``all_gather``, ... as torch.distributed and nccl-tests name them."""
    group: str
    """The global ranks that take part: ``0-3``, ``0,2``; in a message both ends of it."""
    group_size: int
    dtype: str
    bytes: int
    """Of the full array, as nccl-tests counts: what comes out of an all-gather, what goes into a
    reduce-scatter; on every rank the same, but in an all-to-all what this rank sends."""
    elements: int
    """Of this rank's input; identifies the backend's own event."""
    nodes: int = 1
    """Nodes that the ranks of the group are on."""
    source: int | None = None
    """Of a message from one rank to another, which are then its group, the one that sends it."""
    dimension: str | None = None
    """Dimension of the device mesh that the group is over; None: not known, or the group is one rank."""

    @property
    def match_key(self) -> tuple[str, int | None]:
        """What a rank has in common with the others' part in the same call; equal ones follow each other."""
        return self.group, self.source

    @property
    def scope(self) -> LinkScope:
        """Whether the group is inside one node or spans several."""
        return "between" if self.nodes > 1 else "inside"

    def row(self, step: int, place: int) -> dict[str, Any]:
        """The call as a row of the table ``collectives``: the *place*-th of *step*."""
        row = {"step": step, "place": place, **asdict(self)}
        del row["elements"], row["source"]
        return row


@dataclass
class CountedCollectives(SharedResult):
    """What ``communication`` leaves: the collectives of each counted step, and their rows in the record."""

    steps: list[list[CollectiveCall]]
    rows: list[dict[str, Any]]

    def calls_of_step(self, number: int) -> list[CollectiveCall]:
        """Those of the step of that *number* after the counted ones began, which are a whole cycle."""
        return self.steps[number % len(self.steps)] if self.steps else []


def scope_problem(where: LinkScope, nodes: Sequence[int]) -> NotAvailable | None:
    """Why nothing can move *where* between ranks on these *nodes*; None if it can.

    It is absent rather than 0: a suite that moves nothing between its nodes is another thing than one that
    has no second node.
    """
    if len(nodes) < 2:
        return NotAvailable("needs at least two ranks")
    if where == "between" and len(set(nodes)) == 1:
        return NotAvailable("all ranks are on one node")
    if where == "inside" and len(set(nodes)) == len(nodes):
        return NotAvailable("every rank has a node to itself")
    return None


def bus_factor(op: str, n: int) -> float | None:
    """Factor from algorithm bandwidth to bus bandwidth for *op* in a group of *n* ranks.

    All-reduce 2(n-1)/n; all-gather, reduce-scatter and all-to-all (n-1)/n; broadcast, reduce and sendrecv 1.
    None: nccl-tests defines none.
    """
    if op == "all_reduce":
        return 2 * (n - 1) / n
    if op in ("all_gather", "reduce_scatter", "all_to_all"):
        return (n - 1) / n
    return 1.0 if op in ("broadcast", "reduce", "send_recv") else None


def wire_factor(ran: str, n: int) -> float | None:
    """Multiple of the full array that a rank sends on average when the backend runs *ran*.

    Rings, as NCCL's and gloo's default algorithms are: an all-reduce is a reduce-scatter and an
    all-gather. A broadcast brings the array once to each rank but the root. None: not known.
    """
    if ran == "all_reduce":
        return 2 * (n - 1) / n
    if ran in ("all_gather", "reduce_scatter", "all_to_all", "broadcast"):
        return (n - 1) / n
    return 1.0 if ran in ("send", "recv", "send_recv") else None


def inter_node_bytes(ran: str, size: float, rank: int, nodes: Mapping[int, str]) -> float | None:
    """Bytes of a full array of *size* bytes that *rank* sends to other nodes when the backend runs *ran*.

    On a ring whose ranks follow one another node by node, as NCCL and gloo build it of ranks that fill nodes
    in their order, the last rank of each node sends to the next node; in an all-to-all each rank sends every
    other one its part. Of a broadcast it is the mean over nodes.

    Args:
        nodes: Rank -> node, of each rank of the group in the ring's order.

    Returns:
        None: not known.
    """
    if len(set(nodes.values())) == 1:
        return 0.0
    if ran == "all_to_all":
        return size * sum(node != nodes[rank] for node in nodes.values()) / len(nodes)
    factor = wire_factor(ran, len(nodes))
    if factor is None or "send" in ran or "recv" in ran:
        return None
    last = max(other for other, node in nodes.items() if node == nodes[rank])
    return size * factor if rank == last else 0.0


def parse_ranks(text: str) -> list[int]:
    """Ranks that a row's ``group`` names: ``0-3``, ``0,2``."""
    first, _, last = text.partition("-")
    return [*range(int(first), int(last) + 1)] if last else [int(rank) for rank in text.split(",")]
