from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from distbench.strategies.base import RankContext, Strategy
from distbench.strategies.engine import Engine

Cause = Literal["rank", "optimizer", "host", "communication"]


def spin(seconds: float, work: Callable[[], object]) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        work()


@dataclass
class Hindrance:
    """What is planted into an engine, from its third step on: later passes wait for what is planted."""

    by: Cause
    share: float
    rank: int
    seconds: list[float] = field(default_factory=list)
    """To lose in a step, by the first two passes."""
    calls: list[int] = field(default_factory=list)

    @property
    def lost(self) -> float:
        """Seconds to lose in each step."""
        return self.seconds[1] if len(self.seconds) == 2 else 0.0

    def around(self, forward_backward: Callable[..., Any]) -> Callable[..., Any]:
        def hindered(batch: Any) -> Any:
            began = time.perf_counter()
            loss = forward_backward(batch)
            if len(self.seconds) < 2:
                self.seconds.append((time.perf_counter() - began) * self.share / (1 - self.share))
            elif self.by == "rank" and self.rank == 1:
                time.sleep(self.lost)
            elif self.by == "host":
                spin(self.lost, lambda: None)
            return loss

        return hindered

    def communicate(self) -> None:
        import torch
        import torch.distributed as dist

        payload = torch.ones(4_000_000)
        if not self.calls:
            began = time.perf_counter()
            dist.all_reduce(payload)
            # every rank must call equally often
            often = torch.tensor(self.lost / (time.perf_counter() - began))
            dist.broadcast(often, src=0)
            self.calls.append(max(1, round(float(often))))
        for _ in range(self.calls[0]):
            dist.all_reduce(payload)


@dataclass(frozen=True)
class Hindered(Strategy):
    """DDP that loses a share of each step to one cause."""

    by: Cause = "rank"
    share: float = 0.75
    """Of the step with what is lost."""

    @property
    def engine_class(self) -> str:
        return "DistributedDataParallel"

    @property
    def label(self) -> str:
        return f"hindered-{self.by}"

    def build(self, context: RankContext) -> Engine:
        import torch

        from distbench.strategies.ddp import DistributedDataParallel

        engine = DistributedDataParallel().build(context)
        hindrance, step = Hindrance(self.by, self.share, context.rank), engine.step

        def hindered_step() -> None:
            if self.by == "communication" and hindrance.lost:
                hindrance.communicate()
            step()

        engine.forward_backward = hindrance.around(engine.forward_backward)  # type: ignore[method-assign]
        engine.step = hindered_step  # type: ignore[method-assign]
        if self.by == "optimizer":
            engine.inner_optimizer.register_step_pre_hook(  # type: ignore[attr-defined]
                lambda *_: spin(hindrance.lost, lambda: torch.ones(1_000_000).sqrt())
            )
        return engine
