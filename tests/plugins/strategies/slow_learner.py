from __future__ import annotations

from dataclasses import dataclass

from distbench.strategies.base import Setting
from distbench.strategies.ddp import DistributedDataParallel
from distbench.strategies.engine import Engine


@dataclass(frozen=True)
class SlowLearner(DistributedDataParallel):
    """DDP that tells one learning rate and trains with another."""

    @property
    def label(self) -> str:
        return "slow-learner"

    def build(self, setting: Setting) -> Engine:
        engine = super().build(setting)
        told = engine.effective

        def effective() -> dict[str, object]:
            found = told()
            engine._optimizer.param_groups[0]["lr"] = setting.case.optimizer.lr / 100  # type: ignore[attr-defined]
            return found

        engine.effective = effective  # type: ignore[method-assign]
        return engine
