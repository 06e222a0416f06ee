"""What live stages say of themselves, and of all ranks of their line together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard
from torch.nn.parallel import DistributedDataParallel

from distbench.strategies.pp.line import Line
from distbench.strategies.pp.stages import Stage
from distbench.strategies.torch_engine import reading, recomputation, sharding, tensor_parallel


def totals(
    line: Line, module: nn.Module, own: Mapping[str, nn.Parameter], stages: Sequence[Stage]
) -> dict[str, Any]:
    """What the live modules of all ranks of *line* have together. A collective call."""
    recomputed = recomputation.describe_checkpointing(module)["checkpointed_layers"]
    counts = {**reading.counts(own.values()), "checkpointed_layers": recomputed}
    if units := len(sharding.units_of(module)):
        counts["units"] = units
    cut = [p for p in own.values() if isinstance(p, DTensor) and "tp" in (p.device_mesh.mesh_dim_names or ())]
    if cut:
        counts["split_tensors"] = sum(isinstance(tensor_parallel.placement(p), Shard) for p in cut)
    given = line.every(counts)
    return {
        **{key: sum(counted[key] for counted in given) for key in counts},
        "layers_of_stages": of_all_stages(line, {stage.stage_index: stage.layers for stage in stages}),
    }


def of_all_stages(line: Line, own: Mapping[int, int]) -> list[int]:
    """A number of each stage, of which *own* has those of this rank by stage. A collective call."""
    every = {stage: number for each in line.every(own) for stage, number in each.items()}
    return [every[stage] for stage in sorted(every)]


def of_mesh(line: Line, stages: Sequence[Stage]) -> dict[str, Any]:
    """The mesh that parameters and groups of *stages* are in, and how they are cut over it."""
    module, mesh = stages[0].submod, {"pp": line.size}
    facts: dict[str, Any] = {}
    first = next(module.parameters())
    if isinstance(module, DistributedDataParallel):
        mesh["dp_replicate"] = module.process_group.size()
        facts["bucket_bytes_cap"] = module.bucket_bytes_cap
    if isinstance(first, DTensor):
        mesh |= reading.mesh(first)
        facts["placements"] = [str(placement) for placement in first.placements]
    if isinstance(module, FSDPModule):
        layers = [unit for unit in sharding.units_of(module) if unit is not module]
        facts["reshard_after_forward"] = sharding.resharding(layers)
    return {"mesh": mesh, **facts}


def reduce_dtype(stages: Sequence[Stage]) -> str | None:
    """Dtype in which live *stages* reduce gradients over ranks with other rows; None if they have none."""
    module = stages[0].submod
    if isinstance(module, FSDPModule):
        return sharding.reduce_dtype(module)
    if isinstance(module, DistributedDataParallel):
        return reading.dtype_name(parameter.dtype for parameter in module.parameters())
    return None


def book(ledger: reading.Ledger, stages: Sequence[Stage]) -> None:
    """Book what *stages* keep that no parameter, gradient or optimizer state is, and shards."""
    for stage in stages:
        if isinstance(stage.submod, FSDPModule):
            sharding.book(stage.submod, ledger)
        elif isinstance(stage.submod, DistributedDataParallel):
            # C++ owns the reducer's buckets
            sizes: str = stage.submod._get_ddp_logging_data()["bucket_sizes"]
            ledger.add("buffers", sum(map(int, sizes.split(","))))
        ledger.book("buffers", stage.buffers())
