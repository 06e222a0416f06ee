"""Tied weights of which the first and the last stage each have a copy."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from distbench.strategies.pp.pipeline_group import PipelineGroup
from distbench.strategies.torch_engine.readback import full_tensor
from distbench.workloads.stages import PipelineStages
from distbench.workloads.weights import plain_name


class TiedWeights:
    """Keeps both copies equal: they start equal, and each is updated by the sum of both gradients."""

    def __init__(
        self, model: PipelineStages, module: nn.Module, pipeline: PipelineGroup, end_ranks: tuple[int, int]
    ) -> None:
        """Find the copies in *module*, which holds the stages of this rank. Collective call.

        Args:
            end_ranks: Positions in *pipeline* of the ranks with the first and the last stage.
        """
        self._tied = model.tied_names
        named = {plain_name(name): parameter for name, parameter in module.named_parameters()}
        self._pairs = [(named.get(plain), named.get(copy)) for copy, plain in model.tied_names.items()]
        self.copy_names = frozenset(model.tied_names)
        """Plain names of the copies, which the full model does not have."""
        is_apart = bool(model.tied_names) and end_ranks[0] != end_ranks[1]
        self._group = pipeline.end_group(sorted(end_ranks)) if is_apart else None

    def sum_gradients(self) -> None:
        """Set the gradients of both copies to their sum. Collective call of the ranks that have them."""
        for first, last in self._pairs:
            if first is not None and last is not None:
                ours, theirs = _gradient(first), _gradient(last)
                theirs.add_(ours)
                ours.copy_(theirs)
            elif (own := first if last is None else last) is not None:
                dist.all_reduce(_gradient(own), group=self._group)

    def full_copies(self) -> Iterator[tuple[str, torch.Tensor]]:
        """This rank's copies of weights of the first stage, in full, under the names of the originals."""
        for plain, (first, last) in zip(self._tied.values(), self._pairs, strict=True):
            if first is None and last is not None:
                yield plain, full_tensor(last.detach())

    def close(self) -> None:
        """Release the group of both ends."""
        if self._group is not None:
            dist.destroy_process_group(self._group)
            self._group = None


def _gradient(parameter: nn.Parameter) -> torch.Tensor:
    """This rank's part of the gradient: both copies are sharded alike."""
    gradient = parameter.grad
    assert gradient is not None, "after a backward pass"
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient
