from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from distbench.core.case import Case
from distbench.core.machine import Machine
from distbench.strategies.base import RankContext
from distbench.strategies.engine import Engine
from distbench.strategies.zero import Zero


@dataclass(frozen=True)
class PlantedStages(Zero):
    """DeepSpeed's pipeline with one mistake in it."""

    bug: Literal["none", "first-stage-clipping", "local-clipping", "untied"] = "none"
    """DeepSpeed's own clipping in stage 0, by the norm of the first stage; each stage clips by its own norm;
    the ends go apart."""

    @property
    def label(self) -> str:
        return f"planted-stages-{self.bug}"

    def problem(self, case: Case, machine: Machine) -> str | None:
        return None if self.bug == "first-stage-clipping" else super().problem(case, machine)

    def build(self, context: RankContext) -> Engine:
        engine = super().build(context)
        if self.bug == "local-clipping":
            engine.framework_engine.optimizer.model_parallel_group = None
        if self.bug == "untied":
            engine.framework_engine.module.tied_comms = {}
        return engine
