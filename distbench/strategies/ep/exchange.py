"""Dispatch tokens to the ranks of their experts, and combine the results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import (
    all_to_all_single,
    all_to_all_single_autograd,
    wait_tensor,
)


class TokenDispatcher:
    """Passes the tokens that all ranks of a group send to the experts of a module.

    The module is called as in the plain model, with this rank's tokens for all experts, and returns their
    results; inside, it gets the tokens of its own experts.
    """

    def __init__(self, experts: nn.Module, group: dist.ProcessGroup) -> None:
        self._group = group
        self._sent: list[int] = []
        self._received: list[list[int]] = []
        experts.register_forward_pre_hook(self._dispatch)
        experts.register_forward_hook(self._combine)

    def _dispatch(self, _experts: nn.Module, inputs: tuple[torch.Tensor, torch.Tensor]) -> Any:
        tokens, counts = inputs
        ranks = self._group.size()
        of_ranks = wait_tensor(all_to_all_single(counts, None, None, self._group)).view(ranks, -1)
        # the host needs the number of incoming tokens, so it waits for the GPU
        self._sent = counts.view(ranks, -1).sum(1).tolist()
        self._received = of_ranks.tolist()
        arrived = self._all_to_all(tokens, self._received_per_rank, self._sent)
        return _sort_by_expert(arrived, self._received), of_ranks.sum(0)

    def _combine(self, _experts: nn.Module, _inputs: Any, made: torch.Tensor) -> torch.Tensor:
        by_rank = _sort_by_rank(made, self._received)
        return self._all_to_all(by_rank, self._sent, self._received_per_rank)

    @property
    def _received_per_rank(self) -> list[int]:
        """Number of tokens received from each rank."""
        return [sum(of_rank) for of_rank in self._received]

    def _all_to_all(self, tokens: torch.Tensor, come: list[int], go: list[int]) -> torch.Tensor:
        exchanged: torch.Tensor = wait_tensor(all_to_all_single_autograd(tokens, come, go, self._group))
        return exchanged


def _sort_by_expert(tokens: torch.Tensor, counts: Sequence[Sequence[int]]) -> torch.Tensor:
    """*tokens* (tokens, dim), sorted by rank and then by expert, reordered by expert.

    *counts* has, for each rank, the number of tokens that it sent to each expert.
    """
    experts = len(counts[0])
    parts = tokens.split([count for of_rank in counts for count in of_rank])
    return torch.cat([part for expert in range(experts) for part in parts[expert::experts]])


def _sort_by_rank(tokens: torch.Tensor, counts: Sequence[Sequence[int]]) -> torch.Tensor:
    """The inverse of ``_sort_by_expert``."""
    ranks = len(counts)
    parts = tokens.split([count for of_expert in zip(*counts, strict=True) for count in of_expert])
    return torch.cat([part for rank in range(ranks) for part in parts[rank::ranks]])
