from __future__ import annotations

from dataclasses import dataclass

from distbench.core.case import Case
from distbench.strategies.base import Setting, Strategy
from distbench.strategies.engine import Engine


@dataclass(frozen=True)
class SecondMaster(Strategy):
    """DDP whose optimizer holds a copy of the weights beside the parameters."""

    @property
    def engine(self) -> str:
        return "DistributedDataParallel"

    @property
    def label(self) -> str:
        return "second-master"

    def model_states(self, case: Case, parameters: int) -> dict[str, float] | None:
        from distbench.strategies.ddp import DistributedDataParallel

        return DistributedDataParallel().model_states(case, parameters)

    def build(self, setting: Setting) -> Engine:
        from distbench.strategies.ddp import DistributedDataParallel

        engine = DistributedDataParallel().build(setting)
        copies = [p.detach().clone() for p in engine.live.parameters()]  # type: ignore[attr-defined]
        engine._optimizer.add_param_group({"params": copies})  # type: ignore[attr-defined]
        return engine
