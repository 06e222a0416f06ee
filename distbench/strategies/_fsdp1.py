"""FSDP1: ``torch.distributed.fsdp.FullyShardedDataParallel``, each layer a unit."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffload,
    FullyShardedDataParallel,
    MixedPrecision,
    ShardingStrategy,
)
from torch.distributed.fsdp.wrap import CustomPolicy

from distbench.strategies._memory import Ledger
from distbench.strategies._torch import DTYPES, TorchEngine, checkpointed_layers, dtype_name
from distbench.strategies.base import Setting
from distbench.workloads._weights import loaded, plain_name

if TYPE_CHECKING:
    from distbench.strategies import fsdp

_STRATEGIES = {
    "full": ShardingStrategy.FULL_SHARD,
    "grad_op": ShardingStrategy.SHARD_GRAD_OP,
    "hybrid": ShardingStrategy.HYBRID_SHARD,
}

# where a flat parameter keeps its gathered or cast copy, and its gradient; torch has no public way
_WHOLE = ("_mp_shard", "_full_param_padded", "_full_prec_full_param_padded")
_GRADIENTS = ("grad", "_saved_grad_shard", "_cpu_grad")


class Fsdp1Engine(TorchEngine):
    """FullyShardedDataParallel around the module and each of its layers."""

    module: FullyShardedDataParallel

    def __init__(
        self,
        setting: Setting,
        module: FullyShardedDataParallel,
        layers: list[nn.Module],
        *,
        parameters: int,
        reduce_each_micro_batch: bool,
    ) -> None:
        super().__init__(setting, module, layers)
        self._whole = parameters
        self._each = reduce_each_micro_batch

    @property
    def live(self) -> object:
        return self.module

    def reduce_dtype(self) -> str:
        asked = self.module.mixed_precision.reduce_dtype
        return dtype_name([asked] if asked else [p.dtype for p in self.module.parameters()])

    def total_norm(self) -> torch.Tensor:
        # with no limit this only measures: FSDP1 keeps flat shards that a plain norm would miscount
        return self.module.clip_grad_norm_(float("inf"))

    def clip(self, limit: float) -> None:
        self.module.clip_grad_norm_(limit)

    def full_gradients(self) -> dict[str, torch.Tensor]:
        with FullyShardedDataParallel.summon_full_params(self.module, writeback=False, with_grads=True):
            return super().full_gradients()

    def full_state(self) -> dict[str, torch.Tensor]:
        # offload from a CPU frees what was gathered: SIGSEGV once a sharded state was saved (torch 2.13);
        # groups of one rank don't offer it
        spare = self._setting.device.type == "cuda" and self._setting.world_size > 1
        whole = {"writeback": False, "rank0_only": spare, "offload_to_cpu": spare}
        with FullyShardedDataParallel.summon_full_params(self.module, **whole):
            named = self.module.named_parameters() if self._setting.rank == 0 else ()
            return {plain_name(name): p.detach().to("cpu", copy=True) for name, p in named}

    def standing_whole(self) -> int:
        units = [m for m in self.module.modules() if isinstance(m, FullyShardedDataParallel)]
        handles = [unit._handle for unit in units if unit._handle is not None]
        return sum(
            handle.flat_param._unpadded_unsharded_size.numel()
            for handle in handles
            if handle.uses_sharded_strategy and not handle.needs_unshard()
        )

    def effective(self) -> dict[str, Any]:
        units = [m for m in self.module.modules() if isinstance(m, FullyShardedDataParallel)]
        return {
            **super().effective(),
            "parameters": self._whole,
            "units": len(units),
            "unit_classes": sorted({type(unit.module).__qualname__ for unit in units}),
            "reduce_each_micro_batch": self._each,
            "sharding_strategy": self.module.sharding_strategy.name,
            "cpu_offload": self.module.cpu_offload.offload_params,
        }

    def book(self, ledger: Ledger) -> None:
        """Book the flat parameters by what they keep beside the shard, whole or in another dtype."""
        flats = [
            unit._handle.flat_param
            for unit in self.module.modules()
            if isinstance(unit, FullyShardedDataParallel) and unit._handle is not None
        ]
        ledger.book("parameters", [getattr(flat, "_local_shard", flat) for flat in flats])
        ledger.book("buffers", [getattr(flat, name, None) for flat in flats for name in _WHOLE])
        ledger.book("gradients", [getattr(flat, name, None) for flat in flats for name in _GRADIENTS])
        super().book(ledger)

    def _synchronised(self, last: bool) -> AbstractContextManager[Any]:
        return nullcontext() if last or self._each else self.module.no_sync()


def build_fsdp1(strategy: fsdp.FullyShardedDataParallel, setting: Setting) -> Fsdp1Engine:
    """Return the FSDP1 engine of this rank."""
    precision = setting.case.precision
    module = loaded(setting.workload, setting.weights, setting.device).to(DTYPES[precision.master])
    parameters = sum(parameter.numel() for parameter in module.parameters())
    layers = checkpointed_layers(setting.case, module, setting.workload.layers(module))
    chosen = {id(layer) for layer in layers}
    kind = setting.device.type
    mesh = None
    if strategy.sharding == "hybrid":
        shape = (strategy.replicas, setting.world_size // strategy.replicas)
        mesh = init_device_mesh(kind, shape, mesh_dim_names=("replicate", "shard"))
    wrapped = FullyShardedDataParallel(
        module,
        sharding_strategy=_STRATEGIES[strategy.sharding],
        auto_wrap_policy=CustomPolicy(lambda layer: id(layer) in chosen),
        cpu_offload=CPUOffload(offload_params=strategy.cpu_offload),
        mixed_precision=MixedPrecision(
            param_dtype=DTYPES[precision.compute] if precision.compute != precision.master else None,
            reduce_dtype=DTYPES[precision.reduce],
        ),
        device_id=setting.device,
        device_mesh=mesh,
        use_orig_params=True,
    )
    each = strategy.reduce_each_micro_batch
    return Fsdp1Engine(setting, wrapped, layers, parameters=parameters, reduce_each_micro_batch=each)
