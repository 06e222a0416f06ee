"""Stages of a pipeline as one module for evaluation, and the loss of the last stage's output."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import nn

from distbench.strategies.base import RankContext
from distbench.strategies.torch_engine import readback
from distbench.workloads.weights import DTYPES


class StagedModel(nn.Module):
    """Returns the output of the last stage on every rank of a pipeline: any batch size, forward only.

    Calls are collective, with the same samples on all ranks.
    """

    def __init__(
        self,
        context: RankContext,
        group: dist.ProcessGroup,
        activation_shape: tuple[int, ...],
        stages: Mapping[int, nn.Module],
        rank_of_stage: Mapping[int, int],
    ) -> None:
        """Run the stages on the ranks of *group*.

        Args:
            activation_shape: Shape, per sample, of the activations between stages.
            stages: Stages of this rank by their numbers.
            rank_of_stage: Number of each stage -> position in *group* of the rank that has it.
        """
        super().__init__()
        self._context, self._group, self._activation_shape = context, group, activation_shape
        self._stage_modules, self._rank_of_stage = dict(stages), rank_of_stage
        # registered as submodules, so that they switch to evaluation mode together
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
            # logits may be split by class
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
    """Replaces the model in a loss function when its output is known."""

    def __init__(self, output: torch.Tensor) -> None:
        super().__init__()
        self._output = output

    def forward(self, *_inputs: torch.Tensor) -> torch.Tensor:
        """The output, for any input."""
        return self._output
