from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from distbench.strategies.base import RankContext
from distbench.strategies.engine import Engine
from distbench.strategies.ep import ExpertParallel


@dataclass(frozen=True)
class PlantedEp(ExpertParallel):
    """Expert parallelism with one mistake in it."""

    bug: Literal["none", "reduced-twice", "undivided", "apart", "local-clipping"] = "none"
    """Gradients of experts are averaged over ranks as all others are; they stay sums over the ranks; copies
    of the experts go their own ways; each rank clips by the norm of its own experts."""

    @property
    def label(self) -> str:
        return f"planted-ep-{self.bug}"

    def build(self, context: RankContext) -> Engine:
        import torch.distributed as dist
        from torch import nn

        engine = super().build(context)
        finish, world = engine.reduce_expert_gradients, context.world_size

        def again() -> None:
            finish()
            for gradient in engine._expert_and_other_gradients()[0]:
                gradient.div_(world)
                dist.all_reduce(gradient)

        def divided_alone() -> None:
            for gradient in engine._expert_and_other_gradients()[0]:
                gradient.div_(world)

        if self.bug == "reduced-twice":
            engine.reduce_expert_gradients = again
        if self.bug == "undivided":
            engine.reduce_expert_gradients = lambda: None
        if self.bug == "apart":
            engine.reduce_expert_gradients = divided_alone
        if self.bug == "local-clipping":
            engine.clip = lambda limit: nn.utils.clip_grad_norm_(engine.module.parameters(), limit)
        return engine
