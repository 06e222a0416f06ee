"""The pipeline as one module, for evaluation: any number of rows, forward only, one stage after another."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage

from distbench.strategies.base import Setting
from distbench.workloads.stages import Stages
from distbench.workloads.weights import DTYPES


class Whole(nn.Module):
    """Gives every rank what the last stage gives. Calling it is a collective call, with the same rows."""

    def __init__(self, setting: Setting, model: Stages, stages: Sequence[PipelineStage]) -> None:
        super().__init__()
        self._setting, self._between = setting, model.between
        self._parts = {stage.stage_index: stage.submod for stage in stages}
        # so that they go into evaluation mode with it
        self.stages = nn.ModuleList(self._parts.values())
        self._owners = stages[0].stage_index_to_group_rank

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Logits of *inputs*."""
        passed, rank = inputs, dist.get_rank()
        for stage, owner in sorted(self._owners.items()):
            if rank != owner:
                continue
            before, behind = (self._owners.get(other, owner) for other in (stage - 1, stage + 1))
            if before != owner:
                passed = self._empty(len(inputs), *self._between)
                dist.recv(passed, before)
            passed = self._parts[stage](passed)
            if behind != owner:
                dist.send(passed.contiguous(), behind)
        last = self._owners[len(self._owners) - 1]
        if rank != last:
            shape = self._setting.workload.shape
            positions = (shape.length,) if shape.kind == "tokens" else ()
            passed = self._empty(len(inputs), *positions, shape.classes)
        passed = passed.contiguous()
        dist.broadcast(passed, last)
        return passed

    def _empty(self, *shape: int) -> torch.Tensor:
        dtype = DTYPES[self._setting.case.precision.compute]
        return torch.empty(shape, dtype=dtype, device=self._setting.device)
