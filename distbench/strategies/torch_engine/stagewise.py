"""The stages of a pipeline: as one module for evaluation, and their loss by what the last one gives."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import nn

from distbench.strategies.base import RankContext
from distbench.strategies.torch_engine import readback
from distbench.workloads.weights import DTYPES


class StagedModel(nn.Module):
    """Gives every rank of a pipeline what its last stage gives: any number of rows, forward only.

    To call it is collective, with the same rows on all ranks.
    """

    def __init__(
        self,
        context: RankContext,
        group: dist.ProcessGroup,
        activation_shape: tuple[int, ...],
        stages: Mapping[int, nn.Module],
        rank_of_stage: Mapping[int, int],
    ) -> None:
        """Of the ranks in *group*.

        Args:
            activation_shape: Shape of what passes from a stage to the next, of one sample.
            stages: Stages of this rank by their numbers.
            rank_of_stage: Number of each stage -> the place in *group* of the rank that has it.
        """
        super().__init__()
        self._context, self._group, self._activation_shape = context, group, activation_shape
        self._stage_modules, self._rank_of_stage = dict(stages), rank_of_stage
        # so that they go into evaluation mode with it
        self.stages = nn.ModuleList(self._stage_modules.values())

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Logits of *inputs*."""
        passed, here, group = inputs, self._group.rank(), self._group
        for stage, owner in sorted(self._rank_of_stage.items()):
            if here != owner:
                continue
            before, behind = (self._rank_of_stage.get(other, owner) for other in (stage - 1, stage + 1))
            if before != owner:
                passed = self._empty(len(inputs), *self._activation_shape)
                dist.recv(passed, group=group, group_src=before)
            # logits may be cut by classes
            passed = readback.full_tensor(self._stage_modules[stage](passed))
            if behind != owner:
                dist.send(passed.contiguous(), group=group, group_dst=behind)
        last = self._rank_of_stage[len(self._rank_of_stage) - 1]
        if here != last:
            shape = self._context.workload.shape
            passed = self._empty(len(inputs), *shape.label_shape, shape.classes)
        passed = passed.contiguous()
        dist.broadcast(passed, group=group, group_src=last)
        return passed

    def _empty(self, *shape: int) -> torch.Tensor:
        dtype = DTYPES[self._context.case.precision.compute]
        return torch.empty(shape, dtype=dtype, device=self._context.device)


class KnownOutput(nn.Module):
    """Stands in a loss for the model whose output is known."""

    def __init__(self, output: torch.Tensor) -> None:
        super().__init__()
        self._output = output

    def forward(self, *_inputs: torch.Tensor) -> torch.Tensor:
        """The output, whatever goes in."""
        return self._output
