"""FSDP2: ``torch.distributed.fsdp.fully_shard``, each layer a unit and the rest the root's."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor

from distbench.strategies import fsdp
from distbench.strategies.base import Setting
from distbench.strategies.torch_engine import reading, tensor_parallel
from distbench.strategies.torch_engine.engine import WrappedEngine
from distbench.strategies.torch_engine.modules import prepared_layers
from distbench.strategies.torch_engine.reading import Ledger, dtype_name
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
        self._strategy = strategy

    def reduce_dtype(self) -> str:
        policy = _state(self.module)._mp_policy
        reduced = policy.reduce_dtype or policy.param_dtype
        return dtype_name([reduced] if reduced else [p.dtype for p in self.module.parameters()])

    def standing_whole(self) -> int:
        return sum(
            parameter._orig_size.numel()
            for group in self._groups
            if group.is_unsharded
            for parameter in group.fsdp_params
        )

    def effective(self) -> dict[str, Any]:
        units = self._units
        root = _group(self.module)
        first = next(self.module.parameters())
        assert isinstance(first, DTensor)
        return {
            **super().effective(),
            "units": len(units),
            "unit_classes": sorted({type(unit).__qualname__ for unit in units}),
            "reduce_each_micro_batch": self._strategy.reduce_each_micro_batch,
            "mesh": reading.mesh(first),
            "placements": [str(placement) for placement in first.placements],
            "reshard_after_forward": sorted(
                {bool(_group(unit)._reshard_after_forward) for unit in units if unit is not self.module}
            ),
            "reshard_root": root is not None and root._reshard_after_forward,
        }

    def book(self, ledger: Ledger) -> None:
        """Book the shards, then their gathered copies, and the gradients of both."""
        shards = [shard for group in self._groups for shard in group.fsdp_params]
        whole = [getattr(shard, "_unsharded_param", None) for shard in shards]
        ledger.book("parameters", [(shard._sharded_param_data, shard.sharded_param) for shard in shards])
        ledger.book("buffers", [shard.all_gather_outputs for shard in shards], whole)
        ledger.book("gradients", [parameter.grad for parameter in whole if parameter is not None])
        ledger.book("gradients", [shard.unsharded_accumulated_grad for shard in shards])
        ledger.book("gradients", [shard.sharded_param.grad for shard in shards])
        super().book(ledger)

    @property
    def _units(self) -> list[nn.Module]:
        return [m for m in self.module.modules() if isinstance(m, FSDPModule)]

    @property
    def _groups(self) -> list[Any]:
        return [group for unit in self._units if (group := _group(unit)) is not None]

    def _synchronised(self, last: bool) -> AbstractContextManager[Any]:
        if not self._strategy.reduce_each_micro_batch and isinstance(self.module, FSDPModule):
            self.module.set_requires_gradient_sync(last)
        return nullcontext()


class SplitFsdp2Engine(SplitEngine, Fsdp2Engine):
    """``fully_shard`` on layers that are cut over ranks which share rows."""

    def effective(self) -> dict[str, Any]:
        shards = (shard for group in self._groups for shard in group.fsdp_params)
        return {
            **super().effective(),
            "gathered_parameters": sum(shard._orig_size.numel() for shard in shards),
        }

    def _splits_loss(self) -> bool:
        return self._strategy.loss_parallel


def build_fsdp2(strategy: fsdp.FullyShardedDataParallel, setting: Setting) -> Fsdp2Engine:
    """FSDP2 engine of this rank; the whole model is never on one device."""
    precision, mesh = setting.case.precision, strategy.device_mesh(setting)
    shard: dict[str, Any] = {
        "mesh": mesh[tuple(strategy.data_mesh(setting.world_size))],
        "mp_policy": MixedPrecisionPolicy(
            param_dtype=DTYPES[precision.compute] if precision.compute != precision.master else None,
            reduce_dtype=DTYPES[precision.reduce],
        ),
        "offload_policy": CPUOffloadPolicy(pin_memory=setting.device.type == "cuda")
        if strategy.cpu_offload
        else OffloadPolicy(),
    }
    module = weights.cast(weights.skeleton(setting.workload), DTYPES[precision.master])
    if strategy.mesh:
        # first, so that shards are cut of what is left of a tensor
        sequence, loss = strategy.sequence_parallel, strategy.loss_parallel
        tensor_parallel.split(module, setting.workload, mesh["tp"], sequence=sequence, loss=loss)
    tied = weights.tied_groups(module)
    layers = prepared_layers(setting.case, module, setting.workload.layers(module))
    again = strategy.sharding != "grad_op"
    for layer in layers:
        fully_shard(layer, reshard_after_forward=again, **shard)
    fully_shard(module, reshard_after_forward=strategy.reshard_root, **shard)
    weights.empty(module, torch.device("cpu") if strategy.cpu_offload else setting.device)
    weights.retie(module, tied)
    weights.load(module, setting.weights)
    kind = SplitFsdp2Engine if strategy.mesh else Fsdp2Engine
    return kind(setting, module, layers, strategy)


def _state(module: nn.Module) -> Any:
    # torch has no public way to read a unit's policy back, and what was asked for is no proof
    return module._get_fsdp_state()  # type: ignore[operator]


def _group(unit: nn.Module) -> Any:
    return _state(unit)._fsdp_param_group
