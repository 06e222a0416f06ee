from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from distbench.strategies.base import Engine, Setting, Strategy


@dataclass(frozen=True)
class HiddenDefault(Strategy):
    """Clips gradients at 1.0 although nobody asked for it, as DeepSpeed and the HF Trainer do."""

    @property
    def engine(self) -> str:
        return "DistributedDataParallel"

    @property
    def label(self) -> str:
        return "hidden-default"

    def build(self, setting: Setting) -> Engine:
        from distbench.strategies.ddp import DistributedDataParallel

        optimizer = dataclasses.replace(setting.case.optimizer, clip_grad_norm=1.0)
        clipping = dataclasses.replace(setting, case=dataclasses.replace(setting.case, optimizer=optimizer))
        return DistributedDataParallel().build(clipping)
