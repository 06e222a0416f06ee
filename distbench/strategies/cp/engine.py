"""Engines of ``cp``, in the worker: of a replicated model, and of one that FSDP2 shards over all ranks."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from distbench.strategies import cp
from distbench.strategies.base import RankContext
from distbench.strategies.torch_engine import device_meshes, layer_sharding
from distbench.strategies.torch_engine.context_parallel import SequenceShardedEngine, SequenceSharding
from distbench.strategies.torch_engine.engine import DdpWrappedEngine
from distbench.strategies.torch_engine.modules import prepare_layers, prepare_module
from distbench.strategies.torch_engine.readback import StorageCounter
from distbench.strategies.torch_engine.units import construction_remark
from distbench.workloads import weights
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


class ShardedContextEngine(SequenceShardedEngine):
    """``fully_shard`` over all ranks, some of which share samples."""

    def __init__(
        self, context: RankContext, module: nn.Module, layers: list[nn.Module], sequences: SequenceSharding
    ) -> None:
        super().__init__(context, module, layers, sequences)
        self._layers = layers

    def reduce_dtype(self) -> str:
        return layer_sharding.reduce_dtype(self.module)

    def unsharded_elements(self) -> int:
        return layer_sharding.unsharded_elements(self.module)

    def count_storages(self, counter: StorageCounter) -> None:
        layer_sharding.count_fsdp_storages(self.module, counter)
        super().count_storages(counter)

    def remarks(self) -> list[str]:
        built = construction_remark(self._context.workload, "host memory")
        return [*super().remarks(), *built, *layer_sharding.remarks(self.module, self._layers)]

    def effective_settings(self) -> dict[str, Any]:
        units = layer_sharding.fsdp_units(self.module)
        first = next(self.module.parameters())
        assert isinstance(first, DTensor)
        return {
            **super().effective_settings(),
            **layer_sharding.describe_units(self.module, self._layers),
            "placements": [str(placement) for placement in first.placements],
            "reshard_after_forward": layer_sharding.reshard_settings(
                unit for unit in units if unit is not self.module
            ),
        }


def build_sharded(strategy: cp.ContextParallel, context: RankContext) -> ShardedContextEngine:
    """Engine of this rank; the full model is never on one device."""
    workload, precision = context.workload, context.case.precision
    rows = sequence_sharding(strategy, context)
    module = weights.cast(weights.meta_module(workload), DTYPES[precision.master])
    rows.apply_to(module)
    tied = weights.tied_groups(module)
    layers = prepare_layers(context.case, module, workload.layers(module))
    # ranks that share samples are included: their gradients are of other positions
    all_ranks = device_meshes.init_mesh({"dp_shard_cp": context.world_size}, context.device)
    layer_sharding.shard_module(module, layers, all_ranks, precision, reshard=True)
    weights.materialise(module, context.device)
    weights.retie(module, tied)
    weights.load_into(module, context.weights_file)
    return ShardedContextEngine(context, module, layers, rows)
