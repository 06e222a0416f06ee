from __future__ import annotations

from dataclasses import dataclass

from distbench.core.case import Case
from distbench.strategies.base import RankContext, Strategy
from distbench.strategies.engine import Engine


@dataclass(frozen=True)
class SecondMaster(Strategy):
    """DDP whose optimizer holds a copy of the weights beside the parameters."""

    @property
    def engine_class(self) -> str:
        return "DistributedDataParallel"

    @property
    def label(self) -> str:
        return "second-master"

    def model_states(self, case: Case, parameters: int) -> dict[str, float] | None:
        from distbench.strategies.ddp import DistributedDataParallel

        return DistributedDataParallel().model_states(case, parameters)

    def build(self, context: RankContext) -> Engine:
        from distbench.strategies.ddp import DistributedDataParallel

        engine = DistributedDataParallel().build(context)
        copies = [p.detach().clone() for p in engine.framework_engine.parameters()]  # type: ignore[attr-defined]
        engine._optimizer.add_param_group({"params": copies})  # type: ignore[attr-defined]
        return engine
