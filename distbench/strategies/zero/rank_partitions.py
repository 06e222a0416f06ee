"""Parameters and mesh of a live DeepSpeed engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.checkpoint import constants
from deepspeed.pipe import PipelineModule
from deepspeed.utils import groups
from torch import nn

from distbench.workloads.weights import plain_name


def underlying_module(engine: Any) -> nn.Module:
    """Module of *engine* with the model's own names; in a pipeline, this rank's stage."""
    module: nn.Module = engine.module
    if isinstance(module, PipelineModule):
        # the layer that distbench builds; DeepSpeed's names begin with the number of a layer
        (module,) = module.forward_funcs
    return module


def named_parameters(engine: Any) -> Iterator[tuple[str, nn.Parameter]]:
    """Plain names and parameters of *engine*."""
    for name, parameter in underlying_module(engine).named_parameters():
        yield plain_name(name), parameter


# older releases of DeepSpeed do not mark split parameters
_AUTOTP_ATTRIBUTE = getattr(constants, "DS_AUTOTP_UC_META", "")


def partition_dim(parameter: torch.Tensor) -> int | None:
    """Dimension along which *parameter* is split; None: every rank has all of it."""
    found: int | None = getattr(parameter, _AUTOTP_ATTRIBUTE, {}).get("partition_dim")
    return found


def unpartition(parameter: torch.Tensor, piece: torch.Tensor) -> torch.Tensor:
    """Full tensor of *piece*, which is split like *parameter*; a collective call if it is split."""
    cut = partition_dim(parameter)
    if cut is None:
        return piece
    pieces = [
        torch.empty_like(piece, memory_format=torch.contiguous_format) for _ in range(_tp_group().size())
    ]
    dist.all_gather(pieces, piece.contiguous(), group=_tp_group())
    return torch.cat(pieces, cut)


def local_partition(parameter: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """This rank's piece of the full *tensor*, split like *parameter*."""
    cut = partition_dim(parameter)
    if cut is None:
        return tensor
    return tensor.chunk(_tp_group().size(), cut)[_tp_group().rank()].contiguous()


def full_elements(parameter: Any) -> int:
    """Elements of *parameter* before it was split, by AutoTP or by stage 3."""
    cut = 1 if partition_dim(parameter) is None else _tp_group().size()
    return int(getattr(parameter, "ds_numel", parameter.numel())) * cut


def uses_mics(engine: Any) -> bool:
    """True if stage 3 shards over groups of ranks (MiCS), each of which has a replica."""
    return hasattr(next(engine.module.parameters()), "comm")


def shard_group(parameter: Any) -> dist.ProcessGroup:
    """Ranks over which stage 3 shards *parameter*: all, or those of a group of MiCS."""
    groups = getattr(parameter, "comm", None)
    found: dist.ProcessGroup = groups.param_shard_group if groups else parameter.ds_process_group
    return found


def data_parallel_size(engine: Any) -> int:
    """Data-parallel size of *engine*: number of ranks with different samples."""
    return int(dist.get_world_size(group=engine.data_parallel_group))


def mesh_sizes(engine: Any) -> dict[str, int]:
    """Number of ranks of *engine* in each dimension of its device mesh."""
    sizes = {"dp_shard" if engine.zero_optimization_stage() else "dp_replicate": data_parallel_size(engine)}
    if isinstance(engine.module, PipelineModule):
        return {"pp": engine.grid.get_pipe_parallel_group().size(), **sizes}
    return {**sizes, "tp": _tp_group().size()} if engine.autotp_size() > 1 else sizes


def _tp_group() -> dist.ProcessGroup:
    found: dist.ProcessGroup = groups.get_tensor_model_parallel_group()
    return found
