"""Workloads whose models have plans of how they are split, in the words of transformers. Without torch."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from distbench.core.case import Choice
from distbench.workloads import _plans
from distbench.workloads._layouts import layout_of
from distbench.workloads.base import Workload
from distbench.workloads.splits import Splits
from distbench.workloads.stages import Stages

if TYPE_CHECKING:
    from torch import nn

    from distbench.workloads._stage import Cut


class Planned(Workload):
    """A workload whose plans are looked up in its model."""

    def plans(self, module: nn.Module) -> dict[str, Any]:
        """Fields of ``Layout`` that say how *module*, on the meta device if it can be there, is split."""
        raise NotImplementedError

    def cut(self, module: nn.Module) -> Cut:
        """Where *module*, of which ``plans`` gives no reason against it, is cut into stages."""
        raise NotImplementedError

    @property
    def reads_model(self) -> bool:
        return True

    def splits(self) -> Splits | None:
        return _plans.splits(layout_of(self._choice()), self.shape)

    def stages(self) -> Stages | None:
        return _plans.stages(layout_of(self._choice()), self.shape)

    def stage(self, module: nn.Module, layers: range) -> nn.Module:
        from distbench.workloads._stage import stage_of

        return stage_of(module, self.cut(module), layers, self.shape)

    def _choice(self) -> Choice:
        options = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}  # type: ignore[arg-type]
        return Choice(type(self).__module__.rpartition(".")[2], options)
