from __future__ import annotations

from dataclasses import dataclass

from distbench.strategies.base import Setting, Strategy
from distbench.strategies.engine import Engine


@dataclass(frozen=True)
class Masquerade(Strategy):
    """Says that it is FSDP and runs DDP, as a Trainer of today does."""

    @property
    def engine(self) -> str:
        return "FSDPModule"

    @property
    def label(self) -> str:
        return "masquerade"

    def build(self, setting: Setting) -> Engine:
        from distbench.strategies.ddp import DistributedDataParallel

        return DistributedDataParallel().build(setting)
