"""Workloads whose models have parallel plans in the notation of transformers. Without torch."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from distbench.core.case import PluginChoice
from distbench.workloads import _plans
from distbench.workloads._layouts import layout_of
from distbench.workloads.base import Workload
from distbench.workloads.splits import TensorSplits
from distbench.workloads.stages import PipelineStages

if TYPE_CHECKING:
    from torch import nn

    from distbench.workloads._stage import PipelineCut


class PlannedWorkload(Workload):
    """A workload whose plans are looked up in its model."""

    def plan_fields(self, module: nn.Module) -> dict[str, Any]:
        """Fields of ``Layout`` about the splits of *module*, which is on the meta device if possible."""
        raise NotImplementedError

    def pipeline_cut(self, module: nn.Module) -> PipelineCut:
        """Pipeline cut of *module*, for which ``plan_fields`` gives no reason against it."""
        raise NotImplementedError

    @property
    def reads_model(self) -> bool:
        return True

    def tensor_splits(self) -> TensorSplits | None:
        return _plans.tensor_splits(layout_of(self._choice()), self.shape)

    def pipeline_stages(self) -> PipelineStages | None:
        return _plans.pipeline_stages(layout_of(self._choice()), self.shape)

    def build_stage(self, module: nn.Module, layers: range) -> nn.Module:
        from distbench.workloads._stage import make_stage

        return make_stage(module, self.pipeline_cut(module), layers, self.shape)

    def _choice(self) -> PluginChoice:
        options = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}  # type: ignore[arg-type]
        return PluginChoice(type(self).__module__.rpartition(".")[2], options)
