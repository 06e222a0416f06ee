"""DDP with PowerSGD, and one mistake in it: what can be told of a training that is another one by design."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from distbench.strategies.base import RankContext
from distbench.strategies.ddp import DistributedDataParallel
from distbench.strategies.engine import Engine


@dataclass(frozen=True)
class PlantedLossy(DistributedDataParallel):
    """PowerSGD of rank 2 from the third step on, and one mistake."""

    powersgd_rank: int = 2
    bug: Literal["none", "early", "alone", "not-finite", "ascent"] = "none"
    """Gradients are doubled while they are still reduced whole; each rank uses its own second factor; what
    comes of a product is no number; gradients are negated once they are compressed."""

    @property
    def label(self) -> str:
        return f"planted-lossy-{self.bug}"

    def build(self, context: RankContext) -> Engine:
        engine = super().build(context)
        group = engine._state.process_group
        reduce, calls = group.allreduce, []

        def allreduce(tensors: Any, options: Any = None) -> Any:
            calls.append(tensors)
            own = [tensor.clone() for tensor in tensors]
            work = reduce(tensors, options)
            step, of_bucket = divmod(len(calls) - 1 - self.powersgd_start, 3)
            if self.bug == "early" and step < 0:
                tensors[0].mul_(2)
            if self.bug == "alone" and step >= 0 and of_bucket == 2:
                tensors[0].copy_(own[0] * context.world_size)
            if self.bug == "not-finite" and step >= 1:
                tensors[0].fill_(float("nan"))
            # the first factor only spans the space of the product
            if self.bug == "ascent" and step >= 0 and of_bucket != 1:
                tensors[0].neg_()
            return work

        group.allreduce = allreduce
        return engine
