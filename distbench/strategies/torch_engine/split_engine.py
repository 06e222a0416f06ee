"""Engine of a module whose layers are split over ranks that share samples (tensor parallelism)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import loss_parallel

from distbench.strategies.base import RankContext
from distbench.strategies.torch_engine import readback, tensor_parallel
from distbench.strategies.torch_engine.engine import TorchEngine

T = TypeVar("T")


class TensorParallelBaseEngine(TorchEngine):
    """Engine of a module split by ``tensor_parallel.parallelize``; a mix-in for engines that wrap it."""

    def __init__(self, context: RankContext, module: nn.Module, layers: list[nn.Module], *more: Any) -> None:
        super().__init__(context, module, layers, *more)
        self._forward_probe = _ForwardProbe(module, layers)

    def forward_backward(self, micro_batch: dict[str, torch.Tensor]) -> torch.Tensor:
        loss = super().forward_backward(micro_batch)
        if self._micro_batch_count == self._accumulation:
            with self.span("backward"):
                tensor_parallel.redistribute_gradients(self.module)
        return readback.full_tensor(loss)

    def evaluate(self, score: Callable[[nn.Module], T]) -> T:
        with self.module.register_forward_hook(lambda _module, _inputs, output: readback.full_tensor(output)):
            return super().evaluate(score)

    def effective_settings(self) -> dict[str, Any]:
        placed = [p for p in self.module.parameters() if isinstance(p, DTensor)]
        return {
            **super().effective_settings(),
            "mesh": readback.tensor_mesh_sizes(placed[0]),
            "split_tensors": sum(isinstance(tensor_parallel.tp_placement(p), Shard) for p in placed),
            "sequence_parallel": self._forward_probe.positions != self._context.workload.shape.sample_length,
            "loss_parallel": self._forward_probe.logits_are_split,
        }

    def _gradient_sync(self, last: bool) -> AbstractContextManager[Any]:
        return _both(
            super()._gradient_sync(last), loss_parallel() if self._uses_loss_parallel() else nullcontext()
        )

    def _uses_loss_parallel(self) -> bool:
        """True if the loss is computed from logits that are split by class."""
        raise NotImplementedError


class _ForwardProbe:
    """Probe activation shape and logits sharding in the first forward pass."""

    def __init__(self, module: nn.Module, layers: list[nn.Module]) -> None:
        self.positions: int | None = None
        self.logits_are_split = False
        self._hooks = [
            layers[0].register_forward_hook(self._layer),
            module.register_forward_hook(self._model),
        ]

    def _layer(self, _module: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
        self.positions = output.shape[1]

    def _model(self, _module: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
        self.logits_are_split = isinstance(output, DTensor)
        for hook in self._hooks:
            hook.remove()


@contextmanager
def _both(outer: AbstractContextManager[Any], inner: AbstractContextManager[Any]) -> Iterator[None]:
    with outer, inner:
        yield
