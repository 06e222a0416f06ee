"""Tokens on their way to the ranks that have their experts, and back."""

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
    """Lets the experts of a module have the tokens that all ranks of a group send them.

    The module is called as in the plain model, with this rank's tokens for all experts, and gives back what
    became of those; inside it sees what its own experts get.
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
        # the host has to know how many come, which a GPU waits for
        self._sent = counts.view(ranks, -1).sum(1).tolist()
        self._received = of_ranks.tolist()
        arrived = self._all_to_all(tokens, self._received_per_rank, self._sent)
        return _sort_by_expert(arrived, self._received), of_ranks.sum(0)

    def _combine(self, _experts: nn.Module, _inputs: Any, made: torch.Tensor) -> torch.Tensor:
        by_rank = _sort_by_rank(made, self._received)
        return self._all_to_all(by_rank, self._sent, self._received_per_rank)

    @property
    def _received_per_rank(self) -> list[int]:
        """Tokens that come from each rank."""
        return [sum(of_rank) for of_rank in self._received]

    def _all_to_all(self, tokens: torch.Tensor, come: list[int], go: list[int]) -> torch.Tensor:
        exchanged: torch.Tensor = wait_tensor(all_to_all_single_autograd(tokens, come, go, self._group))
        return exchanged


def _sort_by_expert(tokens: torch.Tensor, counts: Sequence[Sequence[int]]) -> torch.Tensor:
    """*tokens* (tokens, dim) sorted by expert, that are sorted by rank and then by expert.

    *counts* has for each rank how many it has sent to each expert.
    """
    experts = len(counts[0])
    parts = tokens.split([count for of_rank in counts for count in of_rank])
    return torch.cat([part for expert in range(experts) for part in parts[expert::experts]])


def _sort_by_rank(tokens: torch.Tensor, counts: Sequence[Sequence[int]]) -> torch.Tensor:
    """The inverse of ``_sort_by_expert``."""
    ranks = len(counts)
    parts = tokens.split([count for of_expert in zip(*counts, strict=True) for count in of_expert])
    return torch.cat([part for rank in range(ranks) for part in parts[rank::ranks]])
