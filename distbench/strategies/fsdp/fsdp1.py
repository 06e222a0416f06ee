"""FSDP1: ``torch.distributed.fsdp.FullyShardedDataParallel``, each layer a unit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import CustomPolicy

from distbench.strategies import fsdp
from distbench.strategies.base import RankContext
from distbench.strategies.fsdp.fsdp1_shards import FlatShardInitializer
from distbench.strategies.torch_engine.engine import WrappedEngine
from distbench.strategies.torch_engine.modules import prepare_layers
from distbench.strategies.torch_engine.readback import StorageCounter, dtype_name, l2_norm, parameter_counts
from distbench.strategies.torch_engine.units import (
    construction_remark,
    merged_layers,
    merged_layers_remark,
    separate_layers,
)
from distbench.workloads import weights
from distbench.workloads.weights import DTYPES, plain_name

_SHARDING_STRATEGIES = {
    "full": ShardingStrategy.FULL_SHARD,
    "grad_op": ShardingStrategy.SHARD_GRAD_OP,
    "hybrid": ShardingStrategy.HYBRID_SHARD,
}

# attributes of a flat parameter with its gathered or cast copy, and its gradient; torch has no public API
_UNSHARDED_MEMBERS = ("_mp_shard", "_full_param_padded", "_full_prec_full_param_padded")
_GRADIENT_MEMBERS = ("grad", "_saved_grad_shard", "_cpu_grad")


class Fsdp1Engine(WrappedEngine):
    """FullyShardedDataParallel around the module and each of its layers."""

    module: FullyShardedDataParallel

    def __init__(
        self,
        context: RankContext,
        module: FullyShardedDataParallel,
        layers: list[nn.Module],
        strategy: fsdp.FullyShardedDataParallel,
        model_size: dict[str, int],
    ) -> None:
        super().__init__(context, module, layers)
        self._strategy, self._layers = strategy, layers
        self._model_size = model_size

    def reduce_dtype(self) -> str:
        asked = self.module.mixed_precision.reduce_dtype
        return dtype_name([asked] if asked else [p.dtype for p in self.module.parameters()])

    def total_norm(self) -> torch.Tensor:
        # without a limit this only measures: FSDP1 keeps flat shards that a plain norm would miscount
        return self.module.clip_grad_norm_(float("inf"))

    def grad_norm(self) -> float:
        return l2_norm(gradient for _, gradient in self.full_gradients())

    def clip(self, limit: float) -> None:
        if self._unscaled_norm is None:
            self.module.clip_grad_norm_(limit)
        else:
            super().clip(limit)

    def full_gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        # a flat gradient also has parts of frozen tensors
        frozen = {plain_name(name) for name, p in self.module.named_parameters() if not p.requires_grad}
        for name, gradient in self._full_tensors(lambda handle: handle.sharded_grad):
            if name not in frozen:
                yield name, gradient if self._scale == 1 else gradient / self._scale

    def full_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        return self._full_tensors(
            lambda handle: getattr(handle.flat_param, "_local_shard", handle.flat_param)
        )

    def _full_tensors(
        self, shard_of: Callable[[Any], torch.Tensor | None]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Full tensors of which each unit keeps a flat shard. Collective call for each unit.

        FSDP's own state_dict on rank 0 only ends in a segmentation fault on the CPU (torch 2.13, two ranks:
        it copies memory that the other hook has freed).
        """
        names = {id(parameter): plain_name(name) for name, parameter in self.module.named_parameters()}
        for handle in self._handles:
            if (shard := shard_of(handle)) is not None:
                parts = handle._get_unflat_views(_all_gather_flat(handle, shard.detach()))
                for parameter, part in zip(handle.flat_param._params or (), parts, strict=True):
                    yield names[id(parameter)], part

    @property
    def _units(self) -> list[FullyShardedDataParallel]:
        return [m for m in self.module.modules() if isinstance(m, FullyShardedDataParallel)]

    @property
    def _handles(self) -> list[Any]:
        return [unit._handle for unit in self._units if unit._handle is not None]

    def unsharded_elements(self) -> int:
        whole = (each for each in self._handles if each.uses_sharded_strategy and not each.needs_unshard())
        return sum(map(_elements, whole))

    def effective_settings(self) -> dict[str, Any]:
        names = merged_layers(self.module, self._layers, self._wrapped_modules)
        return {
            **super().effective_settings(),
            **self._model_size,
            "units": len(self._units),
            "unit_classes": sorted({type(unit.module).__qualname__ for unit in self._units}),
            **({"merged_units": names} if names else {}),
            # of a unit in which some parameters are trained, all
            "reduced_parameters": sum(
                map(_elements, (h for h in self._handles if h.flat_param.requires_grad))
            ),
            "reduce_each_micro_batch": self._strategy.reduce_each_micro_batch,
            "sharding_strategy": self.module.sharding_strategy.name,
            "cpu_offload": self.module.cpu_offload.offload_params,
        }

    def remarks(self) -> list[str]:
        built = construction_remark(self._context.workload, "the memory of its device")
        return [
            *super().remarks(),
            *built,
            *merged_layers_remark(self.module, self._layers, self._wrapped_modules),
        ]

    @property
    def _wrapped_modules(self) -> list[nn.Module]:
        # not its property "module", which returns the module inside a recomputed layer
        return [unit._fsdp_wrapped_module for unit in self._units]

    def count_storages(self, counter: StorageCounter) -> None:
        """Count the flat parameters with their copies, gathered or in another dtype."""
        flats = [handle.flat_param for handle in self._handles]
        counter.count("parameters", [getattr(flat, "_local_shard", flat) for flat in flats])
        counter.count("buffers", [getattr(flat, name, None) for flat in flats for name in _UNSHARDED_MEMBERS])
        counter.count(
            "gradients", [getattr(flat, name, None) for flat in flats for name in _GRADIENT_MEMBERS]
        )
        super().count_storages(counter)

    def _gradient_sync(self, last: bool) -> AbstractContextManager[Any]:
        reduces = last or self._strategy.reduce_each_micro_batch
        return nullcontext() if reduces else self.module.no_sync()


def _elements(handle: Any) -> int:
    size: int = handle.flat_param._unpadded_unsharded_size.numel()
    return size


def _all_gather_flat(handle: Any, shard: torch.Tensor) -> torch.Tensor:
    """The unit's flat tensor without padding; *shard* is this rank's part. Collective call."""
    if not handle.uses_sharded_strategy:
        return shard
    whole = shard.new_empty(shard.numel() * handle.world_size)
    dist.all_gather(list(whole.chunk(handle.world_size)), shard.contiguous(), group=handle.process_group)
    return whole[: handle.flat_param._unpadded_unsharded_size.numel()]


def build_fsdp1(strategy: fsdp.FullyShardedDataParallel, context: RankContext) -> Fsdp1Engine:
    """FSDP1 engine of this rank; at most one unit is unsharded at a time, if the meta device is supported."""
    master = DTYPES[context.case.precision.master]
    if not context.workload.on_meta:
        module = weights.load_module(context.workload, context.weights_file, context.device, master)
        return _wrap(strategy, context, module)
    module = weights.cast(weights.meta_module(context.workload), master)
    with weights.open_weights(context.weights_file) as initial:
        shards = FlatShardInitializer(module, initial, context.device)
        engine = _wrap(strategy, context, module, shards)
        shards.initialize(engine.module)
    return engine


def _wrap(
    strategy: fsdp.FullyShardedDataParallel,
    context: RankContext,
    module: nn.Module,
    shards: FlatShardInitializer | None = None,
) -> Fsdp1Engine:
    """FSDP1 engine of *module*; *shards* initializes its tensors that are on the meta device."""
    precision = context.case.precision
    # flat parameters hide the tensors inside
    whole = parameter_counts(module.parameters())
    layers = prepare_layers(context.case, module, context.workload.layers(module))
    chosen = {id(unit) for unit in separate_layers(module, layers)}
    wrapped = FullyShardedDataParallel(
        module,
        sharding_strategy=_SHARDING_STRATEGIES[strategy.sharding],
        auto_wrap_policy=CustomPolicy(lambda layer: id(layer) in chosen),
        cpu_offload=CPUOffload(offload_params=strategy.cpu_offload),
        mixed_precision=MixedPrecision(
            param_dtype=DTYPES[precision.compute] if precision.compute != precision.master else None,
            reduce_dtype=DTYPES[precision.reduce],
        ),
        param_init_fn=shards,
        device_id=context.device,
        device_mesh=strategy.init_mesh(context) if strategy.sharding == "hybrid" else None,
        use_orig_params=True,
    )
    return Fsdp1Engine(context, wrapped, layers, strategy, whole)
