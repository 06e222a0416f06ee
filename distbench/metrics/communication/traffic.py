"""Collective calls, with bandwidth and bytes on the wire as nccl-tests defines them. Without torch.

nccl-tests: github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from distbench.metrics.base import NotAvailable, SharedResult

SCALAR_BYTES = 1024
"""Bytes; a collective no larger carries a norm or a flag, and gives no information on bandwidth."""
LinkScope = Literal["inside", "between"]
LINK_SCOPES: tuple[LinkScope, ...] = ("inside", "between")
"""Inside a node: all ranks of the group are on it. Between nodes: the group spans several."""


@dataclass(frozen=True)
class CollectiveCall:
    """One collective, as issued by the strategy."""

    op: str
    """``all_reduce``, ``all_gather``, ... as torch.distributed and nccl-tests name them."""
    group: str
    """Global ranks that take part: ``0-3``, ``0,2``; of a message both ends."""
    group_size: int
    dtype: str
    bytes: int
    """Bytes of the full array, as nccl-tests counts: the output of an all-gather, the input of a
    reduce-scatter. The same on every rank, except in an all-to-all: the bytes that this rank sends."""
    elements: int
    """Elements of the input of this rank; identifies the backend's own event."""
    nodes: int = 1
    """Number of nodes that the ranks of the group are on."""
    source: int | None = None
    """Sender of a message between two ranks, which are the group; None: no message, or sender unknown."""
    dimension: str | None = None
    """Dimension of the device mesh that the group spans; None: not known, or the group is one rank."""
    meetings: int = 1
    """1 if the rank multiplied matrices since the collective before it, or if it is the first of a step;
    0: it follows another one, so that ranks wait for each other once for both, or its group is one rank."""

    @property
    def match_key(self) -> tuple[str, int | None]:
        """Key shared by all ranks of the same call; calls with equal keys keep their order."""
        return self.group, self.source

    @property
    def scope(self) -> LinkScope:
        """Scope of the group: inside one node, or between nodes."""
        return "between" if self.nodes > 1 else "inside"

    def row(self, step: int, place: int) -> dict[str, Any]:
        """Row of the table ``collectives``: call number *place* of step number *step*."""
        row = {"step": step, "place": place, **asdict(self)}
        del row["elements"], row["source"]
        return row


@dataclass
class CountedCollectives(SharedResult):
    """Collectives of each counted step, shared by ``communication`` with later passes.

    ``rows`` are their rows in the record.
    """

    steps: list[list[CollectiveCall]]
    rows: list[dict[str, Any]]

    def calls_of_step(self, number: int) -> list[CollectiveCall]:
        """Collectives of step *number* after the counted ones began; these are a whole cycle."""
        return self.steps[number % len(self.steps)] if self.steps else []


def scope_problem(where: LinkScope, nodes: Sequence[int]) -> NotAvailable | None:
    """Reason why nothing can move in the scope *where* between ranks on *nodes*; None if it can.

    The value is then absent rather than 0: a suite that moves nothing between its nodes differs from one that
    has no second node.
    """
    if len(nodes) < 2:
        return NotAvailable("needs at least two ranks")
    if where == "between" and len(set(nodes)) == 1:
        return NotAvailable("all ranks are on one node")
    if where == "inside" and len(set(nodes)) == len(nodes):
        return NotAvailable("each rank is on its own node")
    return None


def bus_factor(op: str, n: int) -> float | None:
    """Factor from algorithm bandwidth to bus bandwidth for *op* in a group of *n* ranks.

    All-reduce 2(n-1)/n; all-gather, reduce-scatter and all-to-all (n-1)/n; broadcast, reduce and send_recv 1.
    None: nccl-tests defines none.
    """
    if op == "all_reduce":
        return 2 * (n - 1) / n
    if op in ("all_gather", "reduce_scatter", "all_to_all"):
        return (n - 1) / n
    return 1.0 if op in ("broadcast", "reduce", "send_recv") else None


def element_count(size: int, element_bytes: int, ranks: int) -> int:
    """Elements of the full array of *size* bytes that *ranks* can share evenly: at least one each.

    Rounded down to a multiple of *ranks*, so the measured size may be a little smaller than requested, and a
    size too small for all ranks becomes larger; records have the bytes that were moved.
    """
    return max(1, size // (element_bytes * ranks)) * ranks


def wire_factor(ran: str, n: int) -> float | None:
    """Multiple of the full array that a rank sends on average when the backend runs *ran*.

    Assumes rings, the default algorithms of NCCL and gloo: an all-reduce is a reduce-scatter and an
    all-gather. In a broadcast and a reduce, each rank but one sends the array once. None: not known.
    """
    if ran == "all_reduce":
        return 2 * (n - 1) / n
    if ran in ("all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce"):
        return (n - 1) / n
    return 1.0 if ran in ("send", "recv", "send_recv") else None


def inter_node_bytes(ran: str, size: float, rank: int, nodes: Mapping[int, str]) -> float | None:
    """Bytes of a full array of *size* bytes that *rank* sends to other nodes when the backend runs *ran*.

    NCCL and gloo build rings whose ranks follow one another node by node if ranks fill the nodes in order:
    the last rank of each node sends to the next node. In an all-to-all each rank sends its share to every
    other rank. For a broadcast it is the mean over nodes.

    Args:
        nodes: Rank -> node, of each rank of the group in the order of the ring.

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
    """Parse the ``group`` of a row into ranks: ``0-3``, ``0,2``."""
    first, _, last = text.partition("-")
    return [*range(int(first), int(last) + 1)] if last else [int(rank) for rank in text.split(",")]


def ranks_text(ranks: Sequence[int]) -> str:
    """Ranks as text: ``0-7`` if consecutive, else ``0,4,8``."""
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[0] + len(ranks))):
        return f"{ranks[0]}-{ranks[-1]}"
    return ",".join(map(str, ranks))
