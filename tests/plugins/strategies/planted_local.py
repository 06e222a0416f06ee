"""DDP with post-local SGD, and one mistake in when or what it averages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from distbench.strategies.base import RankContext
from distbench.strategies.ddp import DistributedDataParallel
from distbench.strategies.engine import Engine


@dataclass(frozen=True)
class PlantedLocal(DistributedDataParallel):
    """Replicas that are averaged every second step from the second on, and one mistake."""

    local_sgd_period: int = 2
    bug: Literal["none", "never", "late", "partly", "scaled"] = "none"
    """Nothing is averaged; everything is a step too late; one tensor never is; a mean is 5% too large."""

    @property
    def label(self) -> str:
        return f"planted-local-{self.bug}"

    def build(self, context: RankContext) -> Engine:
        engine = super().build(context)
        averager = engine._optimizer.averager
        average, told = averager.average_parameters, averager.warmup_steps

        def average_parameters(params: Any) -> None:
            if self.bug == "partly":
                params = [{"params": group["params"][1:]} for group in params]
            if self.bug == "late":
                averager.warmup_steps = told + 1
            since = averager.step - averager.warmup_steps
            if self.bug != "never":
                average(params)
            if self.bug == "scaled" and since >= 0 and since % averager.period == 0:
                for group in params:
                    for parameter in group["params"]:
                        parameter.data *= 1.05
            # what is read back is what was asked for
            averager.warmup_steps = told

        averager.average_parameters = average_parameters
        return engine
