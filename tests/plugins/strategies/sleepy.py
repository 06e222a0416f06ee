from __future__ import annotations

import time
from dataclasses import dataclass

from distbench.strategies.base import RankContext, Strategy
from distbench.strategies.engine import Engine


@dataclass(frozen=True)
class Sleepy(Strategy):
    """DDP whose rank 1 sleeps in every step, so that rank 0 has to wait for it."""

    @property
    def engine_class(self) -> str:
        return "DistributedDataParallel"

    @property
    def label(self) -> str:
        return "sleepy"

    def build(self, context: RankContext) -> Engine:
        from distbench.strategies.ddp import DistributedDataParallel

        engine = DistributedDataParallel().build(context)
        forward_backward = engine.forward_backward

        def tired(batch):  # type: ignore[no-untyped-def]
            time.sleep(0.15 if context.rank == 1 else 0)
            return forward_backward(batch)

        engine.forward_backward = tired  # type: ignore[method-assign]
        return engine
