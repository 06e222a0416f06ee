from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

from distbench.strategies.base import RankContext, Strategy
from distbench.strategies.engine import Engine

SECONDS = 0.3


@dataclass(frozen=True)
class Hindered(Strategy):
    """DDP that loses most of each step to one cause."""

    by: Literal["rank", "optimizer", "host", "communication"] = "rank"

    @property
    def engine_class(self) -> str:
        return "DistributedDataParallel"

    @property
    def label(self) -> str:
        return f"hindered-{self.by}"

    def build(self, context: RankContext) -> Engine:
        import torch
        import torch.distributed as dist

        from distbench.strategies.ddp import DistributedDataParallel

        engine = DistributedDataParallel().build(context)
        forward_backward, step = engine.forward_backward, engine.step

        def hindered_pass(batch):  # type: ignore[no-untyped-def]
            if self.by == "rank" and context.rank == 1:
                time.sleep(SECONDS)
            if self.by == "host":
                end = time.perf_counter() + SECONDS
                while time.perf_counter() < end:
                    pass
            return forward_backward(batch)

        def hindered_step() -> None:
            if self.by == "communication":
                dist.all_reduce(torch.ones(40_000_000))
            step()

        def hindered_update(*_: object) -> None:
            end = time.perf_counter() + SECONDS
            while time.perf_counter() < end:
                torch.ones(1_000_000).sqrt()

        engine.forward_backward = hindered_pass  # type: ignore[method-assign]
        engine.step = hindered_step  # type: ignore[method-assign]
        if self.by == "optimizer":
            engine.inner_optimizer.register_step_pre_hook(hindered_update)  # type: ignore[attr-defined]
        return engine
