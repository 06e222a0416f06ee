"""The worker's side of ``tp``."""

from __future__ import annotations

from torch import nn

from distbench.strategies import tp
from distbench.strategies.base import Setting
from distbench.strategies.torch_engine import device_meshes, tensor_parallel
from distbench.strategies.torch_engine.modules import computing_layers
from distbench.strategies.torch_engine.split_engine import SplitEngine
from distbench.workloads import weights
from distbench.workloads.weights import DTYPES


class TensorParallelEngine(SplitEngine):
    """A module whose layers are cut over all ranks."""

    def __init__(
        self, setting: Setting, module: nn.Module, layers: list[nn.Module], strategy: tp.TensorParallel
    ) -> None:
        super().__init__(setting, module, layers)
        self._strategy = strategy

    def _splits_loss(self) -> bool:
        return self._strategy.loss_parallel


def build_tp(strategy: tp.TensorParallel, setting: Setting) -> TensorParallelEngine:
    """Engine of this rank, which draws no more than its part of each tensor."""
    workload, master = setting.workload, DTYPES[setting.case.precision.master]
    mesh = device_meshes.made(strategy.dimensions(setting.world_size), setting.device)
    module = weights.cast(weights.skeleton(workload), master)
    tensor_parallel.split(
        module, workload, mesh, sequence=strategy.sequence_parallel, loss=strategy.loss_parallel
    )
    weights.empty(module, setting.device)
    weights.load(module, setting.weights)
    return TensorParallelEngine(setting, module, computing_layers(setting, module), strategy)
