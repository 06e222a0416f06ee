from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from distbench.strategies.base import RankContext
from distbench.strategies.engine import Engine
from distbench.strategies.tp import TensorParallel


@dataclass(frozen=True)
class PlantedTp(TensorParallel):
    """Tensor parallelism with sequence parallelism, and one mistake in it."""

    sequence_parallel: bool = True
    bug: Literal["none", "partial-norms", "untied", "local-positions", "local-clipping"] = "none"
    """Norms step by the gradients of a rank's own positions; embedding and head go apart; each rank counts
    its own positions from 0; each rank clips by the norm of its own part."""

    @property
    def label(self) -> str:
        return f"planted-tp-{self.bug}"

    def build(self, context: RankContext) -> Engine:
        import torch
        from torch import nn
        from torch.distributed.tensor import DTensor

        from distbench.strategies.torch_engine import tensor_parallel
        from distbench.workloads import _decoder

        if self.bug == "partial-norms":
            tensor_parallel.redistribute_gradients = own_positions_only
        if self.bug == "local-positions":
            table = _decoder.rope_table

            def local(length: int, *others: object) -> torch.Tensor:
                mine = table(length // context.world_size, *others)
                return torch.cat([mine] * context.world_size, dim=1)

            _decoder.rope_table = local
        engine = super().build(context)
        if self.bug == "untied":
            head = engine.module.head
            head.weight = nn.Parameter(head.weight.detach().clone())
            engine._optimizer.add_param_group({"params": [head.weight]})
        if self.bug == "local-clipping":

            def clip(limit: float) -> None:
                own = [p.grad.to_local() for p in engine.module.parameters() if isinstance(p.grad, DTensor)]
                nn.utils.clip_grads_with_norm_(
                    engine.module.parameters(), limit, nn.utils.get_total_norm(own)
                )

            engine.clip = clip
        return engine


def own_positions_only(module: object) -> None:
    """What ``redistribute_gradients`` does, but the sum over ranks of what each has of a norm's gradient."""
    from torch.distributed.tensor import DTensor

    for parameter in module.parameters():
        gradient, mesh = parameter.grad, parameter.device_mesh
        if any(placement.is_partial() for placement in gradient.placements):
            local = gradient.to_local()
            parameter.grad = DTensor.from_local(local, mesh, parameter.placements, run_check=False)
        else:
            parameter.grad = gradient.redistribute(placements=parameter.placements)
