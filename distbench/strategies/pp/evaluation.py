"""The pipeline as one module, for evaluation: any number of rows, forward only, one stage after another."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage

from distbench.strategies.base import Setting
from distbench.strategies.pp.line import Line
from distbench.workloads.weights import DTYPES


class Whole(nn.Module):
    """Gives every rank of a line what its last stage gives. To call it is collective, with the same rows."""

    def __init__(
        self, setting: Setting, line: Line, between: tuple[int, ...], stages: Sequence[PipelineStage]
    ) -> None:
        super().__init__()
        self._setting, self._line, self._between = setting, line, between
        self._parts = {stage.stage_index: stage.submod for stage in stages}
        # so that they go into evaluation mode with it
        self.stages = nn.ModuleList(self._parts.values())
        self._owners = stages[0].stage_index_to_group_rank

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Logits of *inputs*."""
        passed, here, group = inputs, self._line.place, self._line.group
        for stage, owner in sorted(self._owners.items()):
            if here != owner:
                continue
            before, behind = (self._owners.get(other, owner) for other in (stage - 1, stage + 1))
            if before != owner:
                passed = self._empty(len(inputs), *self._between)
                dist.recv(passed, group=group, group_src=before)
            passed = self._parts[stage](passed)
            if behind != owner:
                dist.send(passed.contiguous(), group=group, group_dst=behind)
        last = self._owners[len(self._owners) - 1]
        if here != last:
            shape = self._setting.workload.shape
            positions = (shape.length,) if shape.kind == "tokens" else ()
            passed = self._empty(len(inputs), *positions, shape.classes)
        passed = passed.contiguous()
        dist.broadcast(passed, group=group, group_src=last)
        return passed

    def _empty(self, *shape: int) -> torch.Tensor:
        dtype = DTYPES[self._setting.case.precision.compute]
        return torch.empty(shape, dtype=dtype, device=self._setting.device)
