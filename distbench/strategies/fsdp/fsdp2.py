"""FSDP2: ``torch.distributed.fsdp.fully_shard``, each layer a unit and the rest the root's."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule
from torch.distributed.tensor import DTensor

from distbench.core.meshes import DATA_DIMENSIONS
from distbench.strategies import fsdp
from distbench.strategies.base import RankContext, UnsupportedCase
from distbench.strategies.fsdp.limits import unit_problem
from distbench.strategies.torch_engine import layer_sharding, readback, tensor_parallel
from distbench.strategies.torch_engine.engine import WrappedEngine
from distbench.strategies.torch_engine.in_backward import InBackwardEngine
from distbench.strategies.torch_engine.modules import prepare_layers
from distbench.strategies.torch_engine.readback import StorageCounter
from distbench.strategies.torch_engine.tensor_parallel import TensorParallelBaseEngine
from distbench.strategies.torch_engine.units import construction_remark
from distbench.workloads import weights
from distbench.workloads.weights import DTYPES


class Fsdp2Engine(WrappedEngine):
    """``fully_shard`` on each layer and on the root."""

    def __init__(
        self,
        context: RankContext,
        module: nn.Module,
        layers: list[nn.Module],
        strategy: fsdp.FullyShardedDataParallel,
    ) -> None:
        super().__init__(context, module, layers)
        self._strategy, self._layers = strategy, layers

    def reduce_dtype(self) -> str:
        return layer_sharding.reduce_dtype(self.module)

    def unsharded_elements(self) -> int:
        return layer_sharding.unsharded_elements(self.module)

    def effective_settings(self) -> dict[str, Any]:
        units = layer_sharding.fsdp_units(self.module)
        root = layer_sharding.parameter_group(self.module)
        first = next(self.module.parameters())
        assert isinstance(first, DTensor)
        return {
            **super().effective_settings(),
            **layer_sharding.describe_units(self.module, self._layers),
            **layer_sharding.unit_settings(self.module),
            "unit_classes": sorted(
                {type(each).__qualname__ for each in layer_sharding.sharded_modules(self.module)}
            ),
            "reduce_each_micro_batch": self._strategy.reduce_each_micro_batch,
            "mesh": readback.tensor_mesh_sizes(first),
            "placements": [str(placement) for placement in first.placements],
            "reshard_after_forward": layer_sharding.reshard_settings(
                unit for unit in units if unit is not self.module
            ),
            "reshard_root": root is not None and root._reshard_after_forward,
        }

    def remarks(self) -> list[str]:
        built = construction_remark(self._context.workload, "host memory")
        return [*super().remarks(), *built, *layer_sharding.remarks(self.module, self._layers)]

    def count_storages(self, counter: StorageCounter) -> None:
        layer_sharding.count_fsdp_storages(self.module, counter)
        super().count_storages(counter)

    def _gradient_sync(self, last: bool) -> AbstractContextManager[Any]:
        if not self._strategy.reduce_each_micro_batch and isinstance(self.module, FSDPModule):
            self.module.set_requires_gradient_sync(last)
        return nullcontext()


class InBackwardFsdp2Engine(InBackwardEngine, Fsdp2Engine):
    """``fully_shard``, which reduces a unit's gradients and then calls a hook for each of its shards."""


class TensorParallelFsdp2Engine(TensorParallelBaseEngine, Fsdp2Engine):
    """``fully_shard`` on layers that are split over ranks which share samples."""

    def effective_settings(self) -> dict[str, Any]:
        shards = (
            shard for group in layer_sharding.parameter_groups(self.module) for shard in group.fsdp_params
        )
        return {
            **super().effective_settings(),
            "gathered_parameters": sum(shard._orig_size.numel() for shard in shards),
        }

    def _uses_loss_parallel(self) -> bool:
        return self._strategy.loss_parallel


def build_fsdp2(strategy: fsdp.FullyShardedDataParallel, context: RankContext) -> Fsdp2Engine:
    """FSDP2 engine of this rank; the full model is never on one device."""
    module = unsharded_module(context)
    layers = shard_module(strategy, context, module)
    kind: type[Fsdp2Engine] = TensorParallelFsdp2Engine if strategy.has_tensor_parallelism else Fsdp2Engine
    if strategy.optimizer_in_backward:
        kind = InBackwardFsdp2Engine
    return kind(context, module, layers, strategy)


def unsharded_module(context: RankContext) -> nn.Module:
    """The case's module on the meta device, in its master dtype."""
    return weights.cast(weights.meta_module(context.workload), DTYPES[context.case.precision.master])


def shard_module(
    strategy: fsdp.FullyShardedDataParallel, context: RankContext, module: nn.Module
) -> list[nn.Module]:
    """Shard *module*, which is on the meta device, load its weights, and return its layers. Collective call.

    Raises:
        UnsupportedCase: the module has fewer layers than the options of *strategy* need.
    """
    precision, mesh = context.case.precision, strategy.init_mesh(context)
    offload = CPUOffloadPolicy(pin_memory=context.device.type == "cuda") if strategy.cpu_offload else None
    if strategy.has_tensor_parallelism:
        # first tensor parallelism, so that FSDP shards the remaining part of each tensor
        sequence, loss = strategy.sequence_parallel, strategy.loss_parallel
        tensor_parallel.parallelize(
            module, context.workload, mesh["tp"], sequence_parallel=sequence, loss_parallel=loss
        )
    tied = weights.tied_groups(module)
    layers = prepare_layers(context.case, module, context.workload.layers(module))
    again = strategy.sharding != "grad_op"
    names = strategy.mesh_sizes(context.world_size)
    of_data = mesh[tuple(name for name in names if name in DATA_DIMENSIONS)]
    units = layer_sharding.shard_module(
        module,
        layers,
        of_data,
        precision,
        reshard=again,
        reshard_root=strategy.reshard_root,
        offload=offload,
        layers_per_unit=strategy.layers_per_unit,
    )
    if reason := unit_problem(strategy, len(layer_sharding.sharded_modules(module)) - 1):
        raise UnsupportedCase(reason)
    layer_sharding.set_prefetches(units, strategy.forward_prefetch, strategy.backward_prefetch)
    weights.materialise(module, torch.device("cpu") if strategy.cpu_offload else context.device)
    weights.retie(module, tied)
    weights.load_into(module, context.weights_file)
    return layers
