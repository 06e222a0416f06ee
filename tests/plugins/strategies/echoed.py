"""``echoed``: a strategy that every reader treats as one of distbench's own, and none knows by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from distbench.core.case import Case
from distbench.strategies.base import Setting, Strategy
from distbench.strategies.ddp import DistributedDataParallel
from distbench.strategies.description import Deviation, Meaning
from distbench.strategies.engine import Engine


@dataclass(frozen=True)
class Echoed(Strategy):
    """DDP that all-reduces its gradients again, and keeps a copy of the weights."""

    settings: ClassVar[Mapping[str, Meaning]] = {
        **DistributedDataParallel.settings,
        "echoes": Meaning("strategy", "how often gradients are reduced again"),
    }

    @property
    def engine(self) -> str:
        return "DistributedDataParallel"

    @property
    def label(self) -> str:
        return "echoed"

    @property
    def simplicity(self) -> int:
        return 5

    @property
    def deviations(self) -> tuple[Deviation, ...]:
        return (
            Deviation("all_reduce", "were reduced again for the echo", ("echoes",)),
            Deviation("master", "the echo keeps a copy of the weights"),
        )

    def collectives(self, case: Case, parameters: int) -> dict[str, float]:
        return DistributedDataParallel().collectives(case, parameters)

    def model_states(self, case: Case, parameters: int) -> dict[str, float]:
        return DistributedDataParallel().model_states(case, parameters)

    def build(self, setting: Setting) -> Engine:
        import torch
        import torch.distributed as dist

        engine: Any = DistributedDataParallel().build(setting)
        step, effective = engine.step, engine.effective

        def echoing_step() -> None:
            dist.all_reduce(torch.cat([p.grad.flatten() for p in engine.live.parameters()]))
            step()

        copies = [p.detach().clone() for p in engine.live.parameters()]
        engine._optimizer.add_param_group({"params": copies})
        engine.step, engine.effective = echoing_step, lambda: {**effective(), "echoes": 1}
        return engine  # type: ignore[no-any-return]
