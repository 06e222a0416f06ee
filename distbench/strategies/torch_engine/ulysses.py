"""Ulysses: all-to-alls between all heads at some positions and all positions of some heads.

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
        """Use the ranks of *mesh*, which share samples."""
        self._group = mesh.get_group()

    def positions_by_rank(self, positions: int) -> torch.Tensor:
        """Positions of each rank (ranks, positions / ranks): consecutive ones."""
        return torch.arange(positions).view(self._group.size(), -1)

    def wrap(self, attend: AttentionFunction) -> AttentionFunction:
        """*attend* between all-to-alls: one each for queries, keys and values before, one for its output."""

        def exchanged(*inputs: torch.Tensor) -> torch.Tensor:
            query, key, value = (_scatter_heads(x, self._group) for x in inputs)
            return _scatter_positions(attend(query, key, value), self._group)

        return exchanged


def _scatter_heads(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """All positions of some heads; *x* (batch, heads, positions, width) has all heads at some positions."""
    sent = x.unflatten(1, (group.size(), -1)).transpose(0, 1)
    # from each rank its positions
    return _all_to_all(sent, group).permute(1, 2, 0, 3, 4).flatten(2, 3)


def _scatter_positions(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """All heads at some positions; *x* (batch, heads, positions, width) has all positions of some heads."""
    sent = x.unflatten(2, (group.size(), -1)).permute(2, 0, 1, 3, 4)
    # from each rank its heads
    return _all_to_all(sent, group).transpose(0, 1).flatten(1, 2)


def _all_to_all(sent: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """The parts for this rank from each rank; *sent* (ranks, ...) has the parts for each rank."""
    received = collectives.all_to_all_single_autograd(sent.contiguous(), None, None, group)
    whole: torch.Tensor = collectives.wait_tensor(received)
    return whole
