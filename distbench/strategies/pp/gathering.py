"""Tensors of all ranks on the first, one after another: what each stage has is nowhere else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import torch
import torch.distributed as dist

Key = TypeVar("Key")


def gathered(tensors: Mapping[Key, torch.Tensor], device: torch.device) -> Iterator[tuple[Key, torch.Tensor]]:
    """Yield on rank 0 the *tensors* of every rank, by their keys, on *device*; elsewhere nothing.

    A collective call: every rank goes through all of them. Each is valid until the next is asked for.
    """
    rank = dist.get_rank()
    of_ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(of_ranks, {key: (tensor.shape, tensor.dtype) for key, tensor in tensors.items()})
    for owner, kinds in enumerate(of_ranks):
        for key, (shape, dtype) in kinds.items():
            if owner == rank == 0:
                yield key, tensors[key]
            elif rank == owner:
                dist.send(tensors[key].to(device).contiguous(), 0)
            elif rank == 0:
                received = torch.empty(shape, dtype=dtype, device=device)
                dist.recv(received, owner)
                yield key, received
