"""Gather the tensors of all ranks of a group on its first one, one after another; no two share one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

import torch
import torch.distributed as dist

from distbench.strategies.engine import TrainingState
from distbench.strategies.torch_engine.readback import full_tensor

Key = TypeVar("Key")
TensorSpec = tuple[torch.Size, torch.dtype]
"""Shape and dtype of a full tensor."""


def gather_to_first(
    own: Mapping[Key, TensorSpec],
    whole: Callable[[Key], torch.Tensor],
    device: torch.device,
    group: dist.ProcessGroup,
) -> Iterator[tuple[Key, torch.Tensor]]:
    """Yield the tensors of all ranks of *group* on its first rank, by their keys, on *device*.

    Other ranks yield nothing. Collective call: every rank iterates over all of them. Each is valid until the
    next is requested.

    Args:
        own: Tensors that this rank has.
        whole: Returns the full tensor of a key, when it is its turn; it may be a collective call of another
            group, whose ranks have the same tensors.
    """
    here, kinds = group.rank(), [dict[Key, TensorSpec]() for _ in range(group.size())]
    dist.all_gather_object(kinds, dict(own), group=group)
    for owner, theirs in enumerate(kinds):
        for key, (shape, dtype) in theirs.items():
            made = whole(key).to(device) if owner == here else None
            if made is not None and here == 0:
                yield key, made
            elif made is not None:
                dist.send(made.contiguous(), group=group, group_dst=0)
            elif here == 0:
                received = torch.empty(shape, dtype=dtype, device=device)
                dist.recv(received, group=group, group_src=owner)
                yield key, received


def gather_nested(
    own: Mapping[str, Mapping[str, torch.Tensor]], device: torch.device, group: dist.ProcessGroup
) -> dict[str, dict[str, torch.Tensor]]:
    """Full tensors of all ranks of *group* by two names, on the CPU of the first rank. Collective call."""
    flat = {(name, key): tensor for name, tensors in own.items() for key, tensor in tensors.items()}
    kinds = {names: (tensor.shape, tensor.dtype) for names, tensor in flat.items()}
    found: dict[str, dict[str, torch.Tensor]] = {}
    for (name, key), tensor in gather_to_first(kinds, lambda names: full_tensor(flat[names]), device, group):
        found.setdefault(name, {})[key] = tensor.to("cpu", copy=True)
    return found


def add_tied_copies(state: TrainingState, tied: Mapping[str, str]) -> TrainingState:
    """*state* with the values of copies of *tied* weights (copy -> weight) added, as separate tensors."""
    parameters = {copy: state.parameters[plain].clone() for copy, plain in tied.items()}
    moments = {
        copy: {key: value.clone() for key, value in state.optimizer[plain].items()}
        for copy, plain in tied.items()
        if plain in state.optimizer
    }
    return dataclasses.replace(
        state, parameters=state.parameters | parameters, optimizer=state.optimizer | moments
    )
