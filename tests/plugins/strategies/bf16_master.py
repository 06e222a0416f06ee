from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from distbench.core.case import Case
from distbench.strategies.base import RankContext, Strategy
from distbench.strategies.engine import Engine


@dataclass(frozen=True)
class Bf16Master(Strategy):
    """ZeRO-2 that keeps master weights and moments in bf16, and says that it does not."""

    @property
    def engine_class(self) -> str:
        return "DeepSpeedEngine"

    @property
    def label(self) -> str:
        return "bf16-master"

    def environment(self, case: Case) -> dict[str, str]:
        from distbench.strategies.zero import Zero

        return Zero(stage=2).environment(case)

    def model_states(self, case: Case, parameters: int) -> dict[str, float] | None:
        from distbench.strategies.zero import Zero

        return Zero(stage=2).model_states(case, parameters)

    def build(self, context: RankContext) -> Engine:
        import torch

        from distbench.strategies.zero import Zero

        engine = Zero(stage=2).build(context)
        optimizer = engine.framework_engine.optimizer  # type: ignore[attr-defined]
        for master in optimizer.single_partition_of_fp32_groups:
            master.data = master.data.to(torch.bfloat16)
        told = engine.effective_settings

        def lies() -> dict[str, Any]:
            found = told()
            return {**found, "dtypes": {**found["dtypes"], "master": "fp32", "optimizer_state": "fp32"}}

        engine.effective_settings = lies  # type: ignore[method-assign]
        return engine
