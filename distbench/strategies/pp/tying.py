"""Tied weights of which the first and the last stage have a copy each."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn

from distbench.workloads.stages import Stages
from distbench.workloads.weights import plain_name


class Tying:
    """Keeps both copies equal: they start alike, and each is updated by the sum of both gradients."""

    def __init__(self, model: Stages, module: nn.Module, ends: tuple[int, int]) -> None:
        """Find the copies in *module*, which holds the stages of this rank. A collective call.

        Args:
            ends: The ranks that have the first and the last stage.
        """
        self._tied = model.tied
        named = {plain_name(name): parameter for name, parameter in module.named_parameters()}
        self._pairs = [(named.get(plain), named.get(copy)) for copy, plain in model.tied.items()]
        self.names = frozenset(model.tied)
        """Plain names of the copies, which the whole model does not have."""
        self._first, self._last = ends
        is_apart = bool(model.tied) and self._first != self._last
        # all ranks make the group, as torch demands
        self._group = dist.new_group(sorted(ends)) if is_apart else None

    def sum_gradients(self) -> None:
        """Give both copies the sum of their gradients. A collective call of the ranks that have them."""
        for first, last in self._pairs:
            if first is not None and last is not None:
                assert first.grad is not None and last.grad is not None, "after a backward pass"
                last.grad.add_(first.grad)
                first.grad.copy_(last.grad)
            elif (own := first if last is None else last) is not None:
                dist.all_reduce(own.grad, group=self._group)

    def copies(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The copies that this rank has of weights of rank 0, under the names that those have."""
        for plain, (first, last) in zip(self._tied.values(), self._pairs, strict=True):
            if first is None and last is not None:
                yield plain, last.detach()

    def close(self) -> None:
        """Release the group of both ends."""
        if self._group is not None and dist.get_rank() in (self._first, self._last):
            dist.destroy_process_group(self._group)
            self._group = None
