"""Tensors of all stages on the first rank, one after another: what a stage has no other stage has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

import torch
import torch.distributed as dist

from distbench.strategies.pp.line import Line
from distbench.strategies.torch_engine.reading import full

Key = TypeVar("Key")


def gathered(
    tensors: Mapping[Key, torch.Tensor], device: torch.device, line: Line
) -> Iterator[tuple[Key, torch.Tensor]]:
    """Yield on the first rank of *line* the *tensors* of all of its ranks, whole, by their keys, on *device*.

    Elsewhere nothing. A collective call: every rank goes through all of them. Each is valid until the next is
    asked for.
    """
    here = line.place
    kinds = line.every({key: (tensor.shape, tensor.dtype) for key, tensor in tensors.items()})
    for owner, own in enumerate(kinds):
        for key, (shape, dtype) in own.items():
            # ranks of other lines have shards of it
            whole = full(tensors[key]).to(device) if owner == here else None
            if whole is not None and here == 0:
                yield key, whole
            elif whole is not None:
                dist.send(whole.contiguous(), group=line.group, group_dst=0)
            elif here == 0:
                received = torch.empty(shape, dtype=dtype, device=device)
                dist.recv(received, group=line.group, group_src=owner)
                yield key, received
