"""Gather the tensors of all stages on the first rank, one after another; no two stages share one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from distbench.strategies.pp.pipeline_group import PipelineGroup
from distbench.strategies.torch_engine import group_tensors
from distbench.strategies.torch_engine.group_tensors import Key
from distbench.strategies.torch_engine.readback import full_tensor


def gather_stage_tensors(
    tensors: Mapping[Key, torch.Tensor], device: torch.device, pipeline: PipelineGroup
) -> Iterator[tuple[Key, torch.Tensor]]:
    """Yield the full *tensors* of all ranks of *pipeline* on its first rank, by their keys, on *device*.

    Other ranks yield nothing. Collective call; see ``torch_engine.gathering``. Ranks of other pipelines have
    shards.
    """
    kinds = {key: (tensor.shape, tensor.dtype) for key, tensor in tensors.items()}
    return group_tensors.gather_to_first(kinds, lambda key: full_tensor(tensors[key]), device, pipeline.group)
