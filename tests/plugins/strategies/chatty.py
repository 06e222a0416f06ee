from __future__ import annotations

from dataclasses import dataclass, replace

from distbench.core.case import Case
from distbench.strategies.base import RankContext, Strategy
from distbench.strategies.description import ExpectedCollective
from distbench.strategies.engine import Engine


@dataclass(frozen=True)
class Chatty(Strategy):
    """DDP that all-reduces its gradients once more than it needs to."""

    @property
    def engine_class(self) -> str:
        return "DistributedDataParallel"

    @property
    def label(self) -> str:
        return "chatty"

    def traffic(self, case: Case, parameters: int) -> list[ExpectedCollective]:
        from distbench.strategies.ddp import DistributedDataParallel

        # it reports no mesh
        moved = DistributedDataParallel().traffic(case, parameters) or ()
        return [replace(each, dimension=None) for each in moved]

    def build(self, context: RankContext) -> Engine:
        import torch
        import torch.distributed as dist

        from distbench.strategies.ddp import DistributedDataParallel

        engine = DistributedDataParallel().build(context)
        step = engine.step

        def wasteful_step() -> None:
            gradients = [p.grad.flatten() for p in engine.framework_engine.parameters()]  # type: ignore[attr-defined]
            dist.all_reduce(torch.cat(gradients))
            step()

        engine.step = wasteful_step  # type: ignore[method-assign]
        return engine
