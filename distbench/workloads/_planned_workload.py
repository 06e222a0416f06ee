"""Workloads whose models have parallel plans in the notation of transformers. Without torch."""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import TYPE_CHECKING, Any

from distbench.core.case import PluginChoice
from distbench.workloads import _plans
from distbench.workloads.base import Workload
from distbench.workloads.layer_shapes import LayerShapes
from distbench.workloads.layouts import ModelLayout, model_layout
from distbench.workloads.module_calls import ModuleCall, nested_calls
from distbench.workloads.splits import TensorSplits
from distbench.workloads.stages import PipelineStages

if TYPE_CHECKING:
    from torch import nn

    from distbench.workloads._stage import PipelineCut


class PlannedWorkload(Workload):
    """A workload whose plans are looked up in its model."""

    def plan_fields(self, module: nn.Module) -> dict[str, Any]:
        """Fields of ``ModelLayout`` about the splits of *module*, which is on the meta device if possible."""
        raise NotImplementedError

    def pipeline_cut(self, module: nn.Module) -> PipelineCut:
        """Pipeline cut of *module*, for which ``plan_fields`` gives no reason against it."""
        raise NotImplementedError

    reads_layout = True
    known_layout: ModelLayout | None = None
    """Layout that ranks have read; None: another process has to."""

    def with_layout(self, layout: ModelLayout) -> Workload:
        known = copy.copy(self)
        # frozen, and not an option
        object.__setattr__(known, "known_layout", layout)
        return known

    @property
    def reads_model(self) -> bool:
        return self.known_layout is None

    def parameters(self) -> int | None:
        shapes = self.tensor_shapes()
        return None if shapes is None else sum(map(math.prod, shapes))

    def tensor_shapes(self) -> tuple[tuple[int, ...], ...] | None:
        known = self.known_layout
        return None if known is None or known.frozen else tuple(known.parameters.values())

    def layer_shapes(self) -> LayerShapes | None:
        known = self.known_layout
        return None if known is None or known.frozen else _plans.layer_shapes(known)

    def module_calls(self) -> ModuleCall | None:
        return None if self.known_layout is None else nested_calls(self.known_layout.calls)

    def tensor_splits(self) -> TensorSplits | None:
        return _plans.tensor_splits(self._layout(), self.shape)

    def pipeline_stages(self) -> PipelineStages | None:
        return _plans.pipeline_stages(self._layout(), self.shape)

    def build_stage(self, module: nn.Module, layers: range) -> nn.Module:
        from distbench.workloads._stage import make_stage

        return make_stage(module, self.pipeline_cut(module), layers, self.shape)

    def _layout(self) -> ModelLayout:
        return self.known_layout or model_layout(self._choice())

    def _choice(self) -> PluginChoice:
        options = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}  # type: ignore[arg-type]
        return PluginChoice(type(self).__module__.rpartition(".")[2], options)
