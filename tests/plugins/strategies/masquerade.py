from __future__ import annotations

from dataclasses import dataclass

from distbench.strategies.base import RankContext, Strategy
from distbench.strategies.engine import Engine


@dataclass(frozen=True)
class Masquerade(Strategy):
    """Says that it is FSDP and runs DDP, as a Trainer of today does."""

    @property
    def engine_class(self) -> str:
        return "FSDPModule"

    @property
    def label(self) -> str:
        return "masquerade"

    def build(self, context: RankContext) -> Engine:
        from distbench.strategies.ddp import DistributedDataParallel

        return DistributedDataParallel().build(context)
