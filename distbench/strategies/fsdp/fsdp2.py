"""FSDP2: ``torch.distributed.fsdp.fully_shard``, each layer a unit and the rest the root's."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule
from torch.distributed.tensor import DTensor

from distbench.core.meshes import OF_DATA
from distbench.strategies import fsdp
from distbench.strategies.base import Setting
from distbench.strategies.torch_engine import construction, reading, sharding, tensor_parallel
from distbench.strategies.torch_engine.engine import WrappedEngine
from distbench.strategies.torch_engine.in_backward import InBackwardEngine
from distbench.strategies.torch_engine.modules import prepared_layers
from distbench.strategies.torch_engine.reading import Ledger
from distbench.strategies.torch_engine.split_engine import SplitEngine
from distbench.workloads import weights
from distbench.workloads.weights import DTYPES


class Fsdp2Engine(WrappedEngine):
    """``fully_shard`` on each layer and on the root."""

    def __init__(
        self,
        setting: Setting,
        module: nn.Module,
        layers: list[nn.Module],
        strategy: fsdp.FullyShardedDataParallel,
    ) -> None:
        super().__init__(setting, module, layers)
        self._strategy, self._layers = strategy, layers

    def reduce_dtype(self) -> str:
        return sharding.reduce_dtype(self.module)

    def standing_whole(self) -> int:
        return sharding.standing_whole(self.module)

    def effective(self) -> dict[str, Any]:
        units = sharding.units_of(self.module)
        root = sharding.group_of(self.module)
        first = next(self.module.parameters())
        assert isinstance(first, DTensor)
        return {
            **super().effective(),
            **sharding.describe_units(self.module, self._layers),
            "unit_classes": sorted({type(unit).__qualname__ for unit in units}),
            "reduce_each_micro_batch": self._strategy.reduce_each_micro_batch,
            "mesh": reading.mesh(first),
            "placements": [str(placement) for placement in first.placements],
            "reshard_after_forward": sharding.resharding(unit for unit in units if unit is not self.module),
            "reshard_root": root is not None and root._reshard_after_forward,
        }

    def remarks(self) -> list[str]:
        built = construction.remark(self._setting.workload, "host memory")
        return [*super().remarks(), *built, *sharding.remarks(self.module, self._layers)]

    def book(self, ledger: Ledger) -> None:
        sharding.book(self.module, ledger)
        super().book(ledger)

    def _synchronised(self, last: bool) -> AbstractContextManager[Any]:
        if not self._strategy.reduce_each_micro_batch and isinstance(self.module, FSDPModule):
            self.module.set_requires_gradient_sync(last)
        return nullcontext()


class InBackwardFsdp2Engine(InBackwardEngine, Fsdp2Engine):
    """``fully_shard``, which reduces a unit's gradients and then calls a hook for each of its shards."""


class SplitFsdp2Engine(SplitEngine, Fsdp2Engine):
    """``fully_shard`` on layers that are cut over ranks which share rows."""

    def effective(self) -> dict[str, Any]:
        shards = (shard for group in sharding.groups_of(self.module) for shard in group.fsdp_params)
        return {
            **super().effective(),
            "gathered_parameters": sum(shard._orig_size.numel() for shard in shards),
        }

    def _splits_loss(self) -> bool:
        return self._strategy.loss_parallel


def build_fsdp2(strategy: fsdp.FullyShardedDataParallel, setting: Setting) -> Fsdp2Engine:
    """FSDP2 engine of this rank; the whole model is never on one device."""
    precision, mesh = setting.case.precision, strategy.device_mesh(setting)
    offload = CPUOffloadPolicy(pin_memory=setting.device.type == "cuda") if strategy.cpu_offload else None
    module = weights.cast(weights.skeleton(setting.workload), DTYPES[precision.master])
    if strategy.cuts_layers:
        # first, so that shards are cut of what is left of a tensor
        sequence, loss = strategy.sequence_parallel, strategy.loss_parallel
        tensor_parallel.split(module, setting.workload, mesh["tp"], sequence=sequence, loss=loss)
    tied = weights.tied_groups(module)
    layers = prepared_layers(setting.case, module, setting.workload.layers(module))
    again = strategy.sharding != "grad_op"
    names = strategy.dimensions(setting.world_size)
    of_data = mesh[tuple(name for name in names if name in OF_DATA)]
    sharding.shard(
        module, layers, of_data, precision, again=again, root_again=strategy.reshard_root, offload=offload
    )
    weights.empty(module, torch.device("cpu") if strategy.cpu_offload else setting.device)
    weights.retie(module, tied)
    weights.load(module, setting.weights)
    kind: type[Fsdp2Engine] = SplitFsdp2Engine if strategy.cuts_layers else Fsdp2Engine
    if strategy.optimizer_in_backward:
        kind = InBackwardFsdp2Engine
    return kind(setting, module, layers, strategy)
