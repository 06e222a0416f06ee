from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from distbench.strategies.base import RankContext
from distbench.strategies.ddp import DistributedDataParallel
from distbench.strategies.engine import Engine


@dataclass(frozen=True)
class OffSchedule(DistributedDataParallel):
    """DDP whose learning rate is a tenth too high from the second corner of its schedule on."""

    silent: bool = False
    """Whether it tells the rate that was asked for, all the same."""

    @property
    def label(self) -> str:
        return "off-schedule-silent" if self.silent else "off-schedule"

    def build(self, context: RankContext) -> Engine:
        from distbench.core.lr_schedule import breakpoints

        engine: Any = super().build(context)
        scheduler, told = engine._scheduler, engine.effective_settings
        (right,), after = scheduler.lr_lambdas, breakpoints(context.case.optimizer)[1]
        scheduler.lr_lambdas[0] = lambda update: right(update) * (1.1 if update >= after else 1)

        def effective() -> dict[str, Any]:
            found = told()
            rate = context.case.optimizer.lr * right(scheduler.last_epoch)
            return {**found, "optimizer": {**found["optimizer"], "next_lr": rate}}

        if self.silent:
            engine.effective_settings = effective
        return engine  # type: ignore[no-any-return]
