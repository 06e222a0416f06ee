"""The stages of a pipeline: as one module for evaluation, and their loss by what the last one gives."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import nn

from distbench.strategies.base import Setting
from distbench.strategies.torch_engine import reading
from distbench.workloads.weights import DTYPES


class Whole(nn.Module):
    """Gives every rank of a pipeline what its last stage gives: any number of rows, forward only.

    To call it is collective, with the same rows on all ranks.
    """

    def __init__(
        self,
        setting: Setting,
        group: dist.ProcessGroup,
        between: tuple[int, ...],
        parts: Mapping[int, nn.Module],
        owners: Mapping[int, int],
    ) -> None:
        """Of the ranks in *group*.

        Args:
            between: Shape of what passes from a stage to the next, of one sample.
            parts: Stages of this rank by their numbers.
            owners: Number of each stage -> the place in *group* of the rank that has it.
        """
        super().__init__()
        self._setting, self._group, self._between = setting, group, between
        self._parts, self._owners = dict(parts), owners
        # so that they go into evaluation mode with it
        self.stages = nn.ModuleList(self._parts.values())

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Logits of *inputs*."""
        passed, here, group = inputs, self._group.rank(), self._group
        for stage, owner in sorted(self._owners.items()):
            if here != owner:
                continue
            before, behind = (self._owners.get(other, owner) for other in (stage - 1, stage + 1))
            if before != owner:
                passed = self._empty(len(inputs), *self._between)
                dist.recv(passed, group=group, group_src=before)
            # logits may be cut by classes
            passed = reading.full(self._parts[stage](passed))
            if behind != owner:
                dist.send(passed.contiguous(), group=group, group_dst=behind)
        last = self._owners[len(self._owners) - 1]
        if here != last:
            shape = self._setting.workload.shape
            passed = self._empty(len(inputs), *shape.label_shape, shape.classes)
        passed = passed.contiguous()
        dist.broadcast(passed, group=group, group_src=last)
        return passed

    def _empty(self, *shape: int) -> torch.Tensor:
        dtype = DTYPES[self._setting.case.precision.compute]
        return torch.empty(shape, dtype=dtype, device=self._setting.device)


class Computed(nn.Module):
    """Stands in a loss for the model whose output is known."""

    def __init__(self, output: torch.Tensor) -> None:
        super().__init__()
        self._output = output

    def forward(self, *_inputs: torch.Tensor) -> torch.Tensor:
        """The output, whatever goes in."""
        return self._output
