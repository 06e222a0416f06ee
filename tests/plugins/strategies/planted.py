from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from distbench.strategies.base import RankContext, Strategy
from distbench.strategies.engine import Engine

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Planted(Strategy):
    """Data parallelism written by hand, with one mistake in it."""

    bug: Literal[
        "none",
        "summed",
        "one-rank-alone",
        "layer-left-out",
        "same-samples",
        "unscaled-accumulation",
        "local-clipping",
        "weight-decay",
        "epsilon",
        "dropped-micro-batch",
        "norm-of-a-shard",
        "keeps-its-state",
        "rare-event",
    ] = "none"
    """rare-event: a gradient is off in one step, if the weights are exactly those of the seed."""

    @property
    def engine_class(self) -> str:
        return "TorchEngine"

    @property
    def label(self) -> str:
        return f"planted-{self.bug}"

    def build(self, context: RankContext) -> Engine:  # noqa: C901 - one room for all the mistakes
        import torch
        import torch.distributed as dist

        from distbench.strategies.torch_engine.engine import TorchEngine
        from distbench.strategies.torch_engine.modules import load_plain_module

        bug, ranks = self.bug, context.world_size

        class ByHand(TorchEngine):
            def forward_backward(self, micro_batch: dict[str, torch.Tensor]) -> torch.Tensor:
                if bug == "same-samples":
                    for tensor in micro_batch.values():
                        dist.broadcast(tensor, 0)
                if bug == "dropped-micro-batch" and self._micro_batch_count == self._accumulation - 1:
                    self._micro_batch_count += 1
                    loss = self._loss(self.module, micro_batch).detach()
                else:
                    loss = super().forward_backward(micro_batch)
                if self._micro_batch_count == self._accumulation:
                    self._reduce()
                return loss

            def _reduce(self) -> None:
                for index, parameter in enumerate(self.module.parameters()):
                    mine = parameter.grad.clone()  # type: ignore[union-attr]
                    if bug == "layer-left-out" and index == 2:
                        continue
                    dist.all_reduce(parameter.grad)
                    if bug != "summed":
                        parameter.grad /= ranks
                    if bug == "one-rank-alone" and context.rank == 1:
                        parameter.grad = mine
                    if (
                        bug == "rare-event"
                        and index == 0
                        and not context.weights_file.stem.startswith("moved")
                    ):
                        parameter.grad *= 1.001

            def full_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
                if bug == "keeps-its-state":
                    raise NotImplementedError("this strategy can't gather its parameters")
                return super().full_parameters()

            def grad_norm(self) -> float:
                return super().grad_norm() / (ranks**0.5 if bug == "norm-of-a-shard" else 1)

            def clip(self, limit: float) -> None:
                parameters = list(self.module.parameters())
                shards: list[list[Any]] = [parameters]
                if bug == "local-clipping":
                    shards = [parameters[rank::ranks] for rank in range(ranks)]
                for shard in shards:
                    torch.nn.utils.clip_grad_norm_(shard, limit)

            def reduce_dtype(self) -> str:
                return context.case.precision.reduce

        engine = ByHand(context, *load_plain_module(context))
        if bug == "unscaled-accumulation":
            type(engine)._divisor = 1
        for group in engine._optimizer.param_groups:
            if bug == "weight-decay":
                group["weight_decay"] = 0.01
            if bug == "epsilon" and "eps" in group:
                group["eps"] = 1e-6
        return engine
