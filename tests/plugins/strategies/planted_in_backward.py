from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from distbench.strategies.base import RankContext
from distbench.strategies.ddp import DistributedDataParallel
from distbench.strategies.engine import Engine


@dataclass(frozen=True)
class PlantedInBackward(DistributedDataParallel):
    """Parameters are updated in the backward pass by a rank's own gradients, before DDP has reduced them."""

    label: ClassVar[str] = "planted-in-backward"

    def build(self, context: RankContext) -> Engine:
        from distbench.strategies.ddp.engine import DdpEngine, build_ddp
        from distbench.strategies.torch_engine.in_backward import InBackwardEngine

        class Planted(InBackwardEngine, DdpEngine):
            pass

        return build_ddp(self, context, Planted)
