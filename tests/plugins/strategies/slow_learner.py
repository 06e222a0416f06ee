from __future__ import annotations

from dataclasses import dataclass

from distbench.strategies.base import RankContext
from distbench.strategies.ddp import DistributedDataParallel
from distbench.strategies.engine import Engine


@dataclass(frozen=True)
class SlowLearner(DistributedDataParallel):
    """DDP that tells one learning rate and trains with another."""

    @property
    def label(self) -> str:
        return "slow-learner"

    def build(self, context: RankContext) -> Engine:
        engine = super().build(context)
        told = engine.effective_settings

        def effective() -> dict[str, object]:
            found = told()
            engine._optimizer.param_groups[0]["lr"] = context.case.optimizer.lr / 100  # type: ignore[attr-defined]
            return found

        engine.effective_settings = effective  # type: ignore[method-assign]
        return engine
