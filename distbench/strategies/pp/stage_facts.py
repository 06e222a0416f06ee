"""Read settings, memory and waits for messages back from live stages, and combine them over a pipeline."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import schedules
from torch.distributed.tensor import DTensor, Shard
from torch.nn.parallel import DistributedDataParallel

from distbench.strategies.engine import Engine
from distbench.strategies.pp.pipeline_group import PipelineGroup
from distbench.strategies.pp.stages import TimedStage
from distbench.strategies.torch_engine import layer_sharding, modules, readback, tensor_parallel

# all schedules wait through this function, and torch (2.13) has no public hook to observe it
_TORCH_WAIT = schedules._wait_batch_p2p


def pipeline_totals(
    pipeline: PipelineGroup, module: nn.Module, own: Mapping[str, nn.Parameter], stages: Sequence[TimedStage]
) -> dict[str, Any]:
    """Totals of the live modules over all ranks of *pipeline*. Collective call."""
    recomputed = modules.describe_checkpointing(module)["checkpointed_layers"]
    counts = {**readback.parameter_counts(own.values()), "checkpointed_layers": recomputed}
    if units := len(layer_sharding.fsdp_units(module)):
        counts["units"] = units
    cut = [p for p in own.values() if isinstance(p, DTensor) and "tp" in (p.device_mesh.mesh_dim_names or ())]
    if cut:
        counts["split_tensors"] = sum(isinstance(tensor_parallel.tp_placement(p), Shard) for p in cut)
    given = pipeline.all_gather_object(counts)
    return {
        **{key: sum(counted[key] for counted in given) for key in counts},
        "layers_of_stages": gather_per_stage(
            pipeline, {stage.stage_index: stage.layer_count for stage in stages}
        ),
    }


def gather_per_stage(pipeline: PipelineGroup, own: Mapping[int, int]) -> list[int]:
    """A number per stage; *own* has those of this rank's stages. Collective call."""
    every = {stage: number for each in pipeline.all_gather_object(own) for stage, number in each.items()}
    return [every[stage] for stage in sorted(every)]


def mesh_settings(pipeline: PipelineGroup, stages: Sequence[TimedStage]) -> dict[str, Any]:
    """Mesh of the parameters and groups of *stages*, and their sharding over it."""
    module, mesh = stages[0].submod, {"pp": pipeline.size}
    facts: dict[str, Any] = {}
    first = next(module.parameters())
    if isinstance(module, DistributedDataParallel):
        mesh["dp_replicate"] = module.process_group.size()
        facts["bucket_bytes_cap"] = module.bucket_bytes_cap
    if isinstance(first, DTensor):
        mesh |= readback.tensor_mesh_sizes(first)
        facts["placements"] = [str(placement) for placement in first.placements]
    if isinstance(module, FSDPModule):
        layers = [unit for unit in layer_sharding.fsdp_units(module) if unit is not module]
        facts["reshard_after_forward"] = layer_sharding.reshard_settings(layers)
    return {"mesh": mesh, **facts}


def stage_reduce_dtype(stages: Sequence[TimedStage]) -> str | None:
    """Dtype in which live *stages* reduce gradients over data-parallel ranks; None if there are none."""
    module = stages[0].submod
    if isinstance(module, FSDPModule):
        return layer_sharding.reduce_dtype(module)
    if isinstance(module, DistributedDataParallel):
        return readback.dtype_name(parameter.dtype for parameter in module.parameters())
    return None


def count_stage_storages(counter: readback.StorageCounter, stages: Sequence[TimedStage]) -> None:
    """Count the buffers and shards of *stages*."""
    for stage in stages:
        if isinstance(stage.submod, FSDPModule):
            layer_sharding.count_fsdp_storages(stage.submod, counter)
        elif isinstance(stage.submod, DistributedDataParallel):
            # C++ owns the reducer's buckets
            sizes: str = stage.submod._get_ddp_logging_data()["bucket_sizes"]
            counter.add_bytes("buffers", sum(map(int, sizes.split(","))))
        counter.count("buffers", stage.buffers())


def time_message_waits(engine: Engine) -> None:
    """Make all schedules of this process wait in the span ``wait`` of *engine*.

    gloo shows a message from its posting until a rank has waited for it, which torch's schedules do for sends
    only when a rank has nothing else to do: without a mark, all of that time would seem to be communication.
    """
    # a device may hold only one engine: the next one is built when this one is freed
    live = weakref.ref(engine)

    def waited(work: list[Any]) -> None:
        if work:
            there = live()
            with there.span("wait") if there else nullcontext():
                _TORCH_WAIT(work)

    schedules._wait_batch_p2p = waited
