"""The worker's side of ``tp``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel

from distbench.strategies import tp
from distbench.strategies.base import Refused, Setting
from distbench.strategies.torch_engine import reading, tensor_parallel
from distbench.strategies.torch_engine.engine import TorchEngine
from distbench.strategies.torch_engine.modules import wrapped
from distbench.workloads import weights
from distbench.workloads.weights import DTYPES

T = TypeVar("T")


class TensorParallelEngine(TorchEngine):
    """A module whose layers are cut over all ranks, which work on the same rows."""

    def __init__(
        self, setting: Setting, module: nn.Module, layers: list[nn.Module], strategy: tp.TensorParallel
    ) -> None:
        super().__init__(setting, module, layers)
        self._strategy = strategy
        self._seen = _Seen(module, layers)

    def forward_backward(self, micro_batch: dict[str, torch.Tensor]) -> torch.Tensor:
        loss = super().forward_backward(micro_batch)
        if self._micro == self._accumulation:
            with self.span("backward"):
                tensor_parallel.place_gradients(self.module)
        return reading.full(loss)

    def evaluate(self, judge: Callable[[nn.Module], T]) -> T:
        with self.module.register_forward_hook(lambda _module, _inputs, output: reading.full(output)):
            return super().evaluate(judge)

    def effective(self) -> dict[str, Any]:
        placed = [p for p in self.module.parameters() if isinstance(p, DTensor)]
        meshes = {tuple(p.device_mesh.mesh.flatten().tolist()) for p in placed}
        return {
            **super().effective(),
            "mesh": {"tp": len(meshes.pop())} if len(meshes) == 1 else {},
            "split_tensors": sum(any(place.is_shard() for place in p.placements) for p in placed),
            "sequence_parallel": self._seen.positions != self._setting.workload.shape.length,
            "loss_parallel": self._seen.logits_are_split,
        }

    def _synchronised(self, last: bool) -> AbstractContextManager[Any]:
        return loss_parallel() if self._strategy.loss_parallel else nullcontext()


class _Seen:
    """Learns from the first forward pass what is between layers, and what comes out at the end."""

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


def build_tp(strategy: tp.TensorParallel, setting: Setting) -> TensorParallelEngine:
    """Engine of this rank, which draws no more than its part of each tensor.

    Raises:
        Refused: the workload does not say how it is split.
    """
    workload, precision = setting.workload, setting.case.precision
    if (splits := workload.splits()) is None:
        raise Refused(strategy.unsplit(setting.case))
    mesh = init_device_mesh(setting.device.type, (setting.world_size,), mesh_dim_names=("tp",))
    module = weights.cast(weights.skeleton(workload), DTYPES[precision.master])
    tensor_parallel.split(
        module, splits, mesh, sequence=strategy.sequence_parallel, loss=strategy.loss_parallel
    )
    tied = weights.tied_groups(module)
    module.to_empty(device=setting.device)
    weights.retie(module, tied)
    weights.load(module, setting.weights)
    return TensorParallelEngine(setting, *wrapped(setting, module), strategy)
