from __future__ import annotations

from dataclasses import dataclass

from distbench.core.case import Case
from distbench.strategies.base import Setting, Strategy
from distbench.strategies.engine import Engine


@dataclass(frozen=True)
class Chatty(Strategy):
    """DDP that all-reduces its gradients once more than it needs to."""

    @property
    def engine(self) -> str:
        return "DistributedDataParallel"

    @property
    def label(self) -> str:
        return "chatty"

    def collectives(self, case: Case, parameters: int) -> dict[str, float]:
        from distbench.strategies.ddp import DistributedDataParallel

        return DistributedDataParallel().collectives(case, parameters)

    def build(self, setting: Setting) -> Engine:
        import torch
        import torch.distributed as dist

        from distbench.strategies.ddp import DistributedDataParallel

        engine = DistributedDataParallel().build(setting)
        step = engine.step

        def wasteful_step() -> None:
            gradients = [p.grad.flatten() for p in engine.live.parameters()]  # type: ignore[attr-defined]
            dist.all_reduce(torch.cat(gradients))
            step()

        engine.step = wasteful_step  # type: ignore[method-assign]
        return engine
