"""Groups of ranks: all, those of each node, or one of each node. Without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from distbench.core.grouping import group_pairs

GroupKind = Literal["all", "node", "between"]


@dataclass(frozen=True)
class RankGroups:
    """Groups of one kind on given nodes."""

    name: GroupKind
    members: tuple[tuple[int, ...], ...] = ()
    """Global ranks of each group of this kind; the groups run at the same time."""
    reason: str = ""
    """Reason why there is none."""


def rank_groups(name: GroupKind, nodes: Sequence[int]) -> RankGroups:
    """Groups called *name* of ranks on *nodes* (the node number of each rank).

    A kind of group with the same ranks as ``all`` is not measured twice.
    """
    ranks = tuple(range(len(nodes)))
    by_node = [tuple(same) for same in group_pairs(zip(nodes, ranks, strict=True)).values()]
    if name == "all":
        return RankGroups(name, (ranks,))
    if len(by_node) == 1:
        return RankGroups(name, reason="all ranks are on one node; see the group all")
    if len(by_node) == len(nodes):
        alone = "each rank is on its own node"
        return RankGroups(name, reason=f"{alone}; see the group all" if name == "between" else alone)
    if name == "between":
        return RankGroups(name, (tuple(same[0] for same in by_node),))
    return RankGroups(name, tuple(same for same in by_node if len(same) > 1))
