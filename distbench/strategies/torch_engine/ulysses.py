"""Ulysses: between all heads at some positions and all positions of some heads, by all-to-alls.

Jacobs et al. 2023 (DeepSpeed-Ulysses, arXiv:2309.14509, section 3.1).
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as collectives
from torch.distributed.device_mesh import DeviceMesh

from distbench.workloads.context import AttentionFunction


class UlyssesAttention:
    """Attention over all positions for some heads of each rank."""

    def __init__(self, mesh: DeviceMesh) -> None:
        """*mesh* has the ranks that share rows."""
        self._group = mesh.get_group()

    def positions_by_rank(self, positions: int) -> torch.Tensor:
        """Positions of each rank (ranks, positions / ranks): those that follow each other."""
        return torch.arange(positions).view(self._group.size(), -1)

    def wrap(self, attend: AttentionFunction) -> AttentionFunction:
        """An all-to-all each of queries, keys and values, *attend*, and one of what comes out."""

        def exchanged(*inputs: torch.Tensor) -> torch.Tensor:
            query, key, value = (_scatter_heads(x, self._group) for x in inputs)
            return _scatter_positions(attend(query, key, value), self._group)

        return exchanged


def _scatter_heads(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """All positions of some heads, of *x* (batch, heads, positions, width) with all heads of some."""
    sent = x.unflatten(1, (group.size(), -1)).transpose(0, 1)
    # from each rank the positions that it has
    return _all_to_all(sent, group).permute(1, 2, 0, 3, 4).flatten(2, 3)


def _scatter_positions(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """All heads at some positions, of *x* (batch, heads, positions, width) with all positions of some."""
    sent = x.unflatten(2, (group.size(), -1)).permute(2, 0, 1, 3, 4)
    # from each rank the heads that it has
    return _all_to_all(sent, group).transpose(0, 1).flatten(1, 2)


def _all_to_all(sent: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """From each rank what it has for this one; *sent* (ranks, ...) has what is for each."""
    received = collectives.all_to_all_single_autograd(sent.contiguous(), None, None, group)
    whole: torch.Tensor = collectives.wait_tensor(received)
    return whole
