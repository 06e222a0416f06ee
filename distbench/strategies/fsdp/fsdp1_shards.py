"""Initial weights of FSDP1: each rank initializes its shards after all units are sharded.

FSDP1 needs each unit in full, twice, to split off a rank's shard, and the root's, which has the embedding and
the head and is the largest, comes last. So while units are sharded, no data of the earlier ones is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

from distbench.workloads import weights


class FlatShardInitializer:
    """FSDP1's ``param_init_fn``: allocates the units of *module*, and later initializes their shards."""

    def __init__(self, module: nn.Module, initial: weights.WeightFile, device: torch.device) -> None:
        self._module, self._initial = module, initial
        self._make = weights.ModuleMaterialiser(module, initial, device)
        self._released: list[tuple[torch.UntypedStorage, int]] = []

    def __call__(self, part: nn.Module) -> None:
        """Allocate the tensors of *part*, a part of the next unit."""
        self._free_previous_units()
        self._make(part)

    def initialize(self, wrapped: FullyShardedDataParallel) -> None:
        """Initialize this rank's shards of the units of *wrapped*."""
        for storage, size in self._released:
            storage.resize_(size)
        names = {id(parameter): weights.plain_name(name) for name, parameter in wrapped.named_parameters()}
        with torch.no_grad():
            for flat in _flat_parameters(wrapped):
                # including the padding
                flat.zero_()
                for place, parameter in enumerate(flat._params):
                    self._initialize_parameter(flat, place, names[id(parameter)])

    def _free_previous_units(self) -> None:
        for flat in _flat_parameters(self._module):
            storage = flat.untyped_storage()
            if storage.size():
                self._released.append((storage, storage.size()))
                storage.resize_(0)

    def _initialize_parameter(self, flat: Any, place: int, name: str) -> None:
        shard = flat._shard_param_infos[place]
        if not shard.in_shard:
            return
        start, count = shard.intra_param_start_idx, shard.numel_in_shard
        own = flat.detach()[shard.offset_in_shard :][:count]
        if flat._contiguities[place]:
            self._initial.fill(own, name, start)
            return
        # a flat parameter has its elements in memory order
        whole = torch.empty_strided(flat._shapes[place], flat._strides[place])
        whole.copy_(self._initial.tensor(name))
        own.copy_(whole.as_strided((whole.numel(),), (1,))[start : start + count])


def _flat_parameters(module: nn.Module) -> Iterator[Any]:
    """Flat parameters of the units in *module*; torch has no public API."""
    for unit in module.modules():
        if isinstance(unit, FullyShardedDataParallel) and unit._handle is not None:
            yield unit._handle.flat_param
