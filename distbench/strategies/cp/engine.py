"""The worker's side of ``cp``."""

from __future__ import annotations

from torch.nn.parallel import DistributedDataParallel

from distbench.strategies import cp
from distbench.strategies.base import Setting
from distbench.strategies.torch_engine import device_meshes
from distbench.strategies.torch_engine.context_parallel import ContextEngine, Rows
from distbench.strategies.torch_engine.modules import computing_layers
from distbench.strategies.torch_engine.replicated import ReplicatedEngine
from distbench.workloads.weights import DTYPES, loaded


class ContextParallelEngine(ReplicatedEngine, ContextEngine):
    """A whole model on each rank, for some positions of its rows; DDP sums its gradients over all ranks."""


def rows_of(strategy: cp.ContextParallel, setting: Setting) -> Rows:
    """Rows over the mesh of live ranks. A collective call."""
    mesh = device_meshes.made(strategy.dimensions(setting.world_size), setting.device)
    return Rows(setting.workload, mesh, strategy.implementation)


def build_cp(strategy: cp.ContextParallel, setting: Setting) -> ContextParallelEngine:
    """Engine of this rank."""
    rows = rows_of(strategy, setting)
    master = DTYPES[setting.case.precision.master]
    module = loaded(setting.workload, setting.weights, setting.device, master)
    rows.cut(module)
    layers = computing_layers(setting, module)
    # all ranks have gradients of their own: those of other rows, or of other positions
    whole = DistributedDataParallel(
        module, device_ids=[setting.device] if setting.device.type == "cuda" else None
    )
    return ContextParallelEngine(setting, whole, layers, rows)
