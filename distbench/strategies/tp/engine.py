"""Engine of ``tp``, in the worker."""

from __future__ import annotations

from torch import nn

from distbench.strategies import tp
from distbench.strategies.base import RankContext
from distbench.strategies.torch_engine import device_meshes, tensor_parallel
from distbench.strategies.torch_engine.modules import prepare_module
from distbench.strategies.torch_engine.tensor_parallel import TensorParallelBaseEngine
from distbench.workloads import weights
from distbench.workloads.weights import DTYPES


class TensorParallelEngine(TensorParallelBaseEngine):
    """A module whose layers are split over all ranks."""

    def __init__(
        self, context: RankContext, module: nn.Module, layers: list[nn.Module], strategy: tp.TensorParallel
    ) -> None:
        super().__init__(context, module, layers)
        self._strategy = strategy

    def _uses_loss_parallel(self) -> bool:
        return self._strategy.loss_parallel


def build_tp(strategy: tp.TensorParallel, context: RankContext) -> TensorParallelEngine:
    """Engine of this rank, which initializes only its part of each tensor."""
    workload, master = context.workload, DTYPES[context.case.precision.master]
    mesh = device_meshes.init_mesh(strategy.mesh_sizes(context.world_size), context.device)
    module = weights.cast(weights.meta_module(workload), master)
    tensor_parallel.parallelize(
        module,
        workload,
        mesh,
        sequence_parallel=strategy.sequence_parallel,
        loss_parallel=strategy.loss_parallel,
    )
    weights.materialise(module, context.device)
    weights.load_into(module, context.weights_file)
    return TensorParallelEngine(context, module, prepare_module(context, module), strategy)
