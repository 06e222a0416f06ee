from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

from distbench.strategies.base import RankContext, Strategy
from distbench.strategies.engine import Engine


@dataclass(frozen=True)
class HiddenDefault(Strategy):
    """Clips gradients at 1.0 although nobody asked for it, as DeepSpeed and the HF Trainer do."""

    clip_grad_norm: float | None = 1.0
    """What it clips at."""
    kernel: Literal["fused", "foreach"] = "fused"
    """The optimizer's kernel that it takes, whatever was asked for."""

    @property
    def engine_class(self) -> str:
        return "DistributedDataParallel"

    @property
    def label(self) -> str:
        return "hidden-default"

    def build(self, context: RankContext) -> Engine:
        from distbench.strategies.ddp import DistributedDataParallel

        changed = {"clip_grad_norm": self.clip_grad_norm, "kernel": self.kernel}
        optimizer = dataclasses.replace(context.case.optimizer, **changed)
        clipping = dataclasses.replace(context, case=dataclasses.replace(context.case, optimizer=optimizer))
        return DistributedDataParallel().build(clipping)
