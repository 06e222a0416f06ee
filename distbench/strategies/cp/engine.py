"""Engine of ``cp``, in the worker."""

from __future__ import annotations

from torch.nn.parallel import DistributedDataParallel

from distbench.strategies import cp
from distbench.strategies.base import RankContext
from distbench.strategies.torch_engine import device_meshes
from distbench.strategies.torch_engine.context_parallel import SequenceShardedEngine, SequenceSharding
from distbench.strategies.torch_engine.modules import prepare_module
from distbench.strategies.torch_engine.replicated_engine import DdpWrappedEngine
from distbench.workloads.weights import DTYPES, load_module


class ContextParallelEngine(DdpWrappedEngine, SequenceShardedEngine):
    """A full model on each rank, for some positions of its samples; DDP reduces gradients over all ranks."""


def sequence_sharding(strategy: cp.ContextParallel, context: RankContext) -> SequenceSharding:
    """Sequences split over the mesh of live ranks. Collective call."""
    mesh = device_meshes.init_mesh(strategy.mesh_sizes(context.world_size), context.device)
    return SequenceSharding(context.workload, mesh, strategy.implementation)


def build_cp(strategy: cp.ContextParallel, context: RankContext) -> ContextParallelEngine:
    """Engine of this rank."""
    rows = sequence_sharding(strategy, context)
    master = DTYPES[context.case.precision.master]
    module = load_module(context.workload, context.weights_file, context.device, master)
    rows.apply_to(module)
    layers = prepare_module(context, module)
    # gradients differ on all ranks: they are of other samples, or of other positions
    whole = DistributedDataParallel(
        module, device_ids=[context.device] if context.device.type == "cuda" else None
    )
    return ContextParallelEngine(context, whole, layers, rows)
