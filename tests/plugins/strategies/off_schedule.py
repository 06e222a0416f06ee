from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from distbench.strategies.base import Setting
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

    def build(self, setting: Setting) -> Engine:
        from distbench.core.lr_schedule import corners

        engine: Any = super().build(setting)
        scheduler, told = engine._scheduler, engine.effective
        (right,), after = scheduler.lr_lambdas, corners(setting.case.optimizer)[1]
        scheduler.lr_lambdas[0] = lambda update: right(update) * (1.1 if update >= after else 1)

        def effective() -> dict[str, Any]:
            found = told()
            rate = setting.case.optimizer.lr * right(scheduler.last_epoch)
            return {**found, "optimizer": {**found["optimizer"], "next_lr": rate}}

        if self.silent:
            engine.effective = effective
        return engine  # type: ignore[no-any-return]
