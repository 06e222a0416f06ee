"""``echoed``: a strategy that every reader treats as one of distbench's own, and none knows by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from distbench.core.case import Case
from distbench.strategies.base import RankContext, Strategy
from distbench.strategies.ddp import DistributedDataParallel
from distbench.strategies.description import ExcessCause, ExpectedCollective, SettingMeaning
from distbench.strategies.engine import Engine


@dataclass(frozen=True)
class Echoed(Strategy):
    """DDP that all-reduces its gradients again, and keeps a copy of the weights."""

    settings: ClassVar[Mapping[str, SettingMeaning]] = {
        **DistributedDataParallel.settings,
        "echoes": SettingMeaning("strategy", "how often gradients are reduced again"),
    }

    @property
    def engine_class(self) -> str:
        return "DistributedDataParallel"

    @property
    def label(self) -> str:
        return "echoed"

    @property
    def simplicity(self) -> int:
        return 5

    @property
    def excess_causes(self) -> tuple[ExcessCause, ...]:
        return (
            ExcessCause("all_reduce", "were reduced again for the echo", ("echoes",)),
            ExcessCause("master", "the echo keeps a copy of the weights"),
        )

    def traffic(self, case: Case, parameters: int) -> list[ExpectedCollective]:
        # it reports no mesh
        moved = DistributedDataParallel().traffic(case, parameters) or ()
        return [replace(each, dimension=None) for each in moved]

    def model_states(self, case: Case, parameters: int) -> dict[str, float]:
        return DistributedDataParallel().model_states(case, parameters)

    def build(self, context: RankContext) -> Engine:
        import torch
        import torch.distributed as dist

        engine: Any = DistributedDataParallel().build(context)
        step, effective = engine.step, engine.effective_settings

        def echoing_step() -> None:
            dist.all_reduce(torch.cat([p.grad.flatten() for p in engine.framework_engine.parameters()]))
            step()

        copies = [p.detach().clone() for p in engine.framework_engine.parameters()]
        engine._optimizer.add_param_group({"params": copies})
        engine.step, engine.effective_settings = echoing_step, lambda: {**effective(), "echoes": 1}
        return engine  # type: ignore[no-any-return]
