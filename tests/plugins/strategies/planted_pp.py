from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from distbench.core.case import Case
from distbench.core.machine import Machine
from distbench.strategies.base import RankContext
from distbench.strategies.engine import Engine
from distbench.strategies.pp import PipelineParallel


@dataclass(frozen=True)
class PlantedPp(PipelineParallel):
    """A pipeline with one mistake in it."""

    bug: Literal["none", "unscaled", "scaled-by-torch", "untied", "local-clipping", "freed-early"] = "none"
    """Gradients are sums over the micro-batches of a schedule; torch divides by them what earlier schedules
    of the step have left as well; embedding and head go apart; each stage clips by its own norm; shards are
    freed between the halves of a backward pass, as reshard_after_forward would with a schedule that has
    them."""

    @property
    def label(self) -> str:
        return f"planted-pp-{self.bug}"

    def problem(self, case: Case, machine: Machine) -> str | None:
        return None if self.bug == "freed-early" else super().problem(case, machine)

    def build(self, context: RankContext) -> Engine:
        from torch import nn

        engine = super().build(context)
        if self.bug in ("unscaled", "scaled-by-torch"):
            divisor = engine.loss_divisor() / self.micro_batches
            engine.loss_divisor = lambda: divisor
            engine._schedule.scale_grads = self.bug == "scaled-by-torch"
        if self.bug == "untied":
            engine._tied_weights.sum_gradients = lambda: None
        if self.bug == "local-clipping":
            engine.clip = lambda limit: nn.utils.clip_grad_norm_(engine.module.parameters(), limit)
        return engine
