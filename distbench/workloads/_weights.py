"""The initial weights: drawn once from the seed, kept in one file, loaded by every strategy.

A seed alone is not enough: sharded initialisation draws its random numbers in another order
(torchtitan, docs/converging.md), so every strategy would start from other weights.
"""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

if TYPE_CHECKING:
    from distbench.workloads.base import Workload

_WRAPPERS = ("_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod")

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

Tied = list[list[tuple[nn.Module, str]]]
"""Groups of (module, parameter name) that share one parameter."""


def plain_name(name: str) -> str:
    """Return *name* without what wrappers put into it: the name in the plain module."""
    parts = [part for part in name.split(".") if part not in _WRAPPERS]
    while parts[0] == "module":
        parts = parts[1:]
    return ".".join(parts)


def save(workload: Workload, seed: int, file: Path, through: str = "fp32") -> None:
    """Draw the weights of *workload* from *seed* and write them, with all buffers, as fp32.

    They are rounded through *through* (fp32, bf16 or fp16): frameworks that make their fp32 master weights of
    16-bit parameters then start from the same numbers as those that do it the other way round.
    """
    torch.manual_seed(seed)
    with torch.device("cpu"):
        module = workload.module()
    parameters = {name: p.detach().to(_DTYPES[through]).float() for name, p in module.named_parameters()}
    tensors = {**parameters, **dict(module.named_buffers())}
    aside = file.with_name(f".{file.name}.{os.getpid()}")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, aside)
    aside.replace(file)


def skeleton(workload: Workload) -> nn.Module:
    """Return the module without weights: on the meta device, or on the CPU if it can't be built there."""
    with torch.device("meta" if workload.on_meta else "cpu"):
        return workload.module()


def loaded(workload: Workload, file: Path, device: torch.device) -> nn.Module:
    """Return the whole module on *device* with the weights of *file*."""
    module = skeleton(workload)
    tied = tied_groups(module)
    module = module.to_empty(device=device) if workload.on_meta else module.to(device)
    retie(module, tied)
    load(module, file)
    return module


def read(file: Path) -> dict[str, torch.Tensor]:
    """Return every tensor of *file* by its plain name, memory-mapped."""
    with safe_open(file, framework="pt") as opened:
        return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - no mapping


def load(module: nn.Module, file: Path) -> None:
    """Copy the tensors of *file* into the parameters and buffers of *module*.

    Of a DTensor only this rank's shard is read; nothing is communicated.

    Raises:
        ValueError: the file and the module do not name the same tensors.
    """
    targets = {plain_name(n): t for n, t in [*module.named_parameters(), *module.named_buffers()]}
    with safe_open(file, framework="pt") as opened:
        names = set(opened.keys())
        if names != targets.keys():
            raise ValueError(f"initial weights don't fit the module: {sorted(names ^ targets.keys())}")
        with torch.no_grad():
            for name, target in targets.items():
                if isinstance(target, DTensor):
                    _load_shard(target, opened.get_slice(name))
                else:
                    target.copy_(opened.get_tensor(name))


def tied_groups(module: nn.Module) -> Tied:
    """Return the groups of parameters that are one and the same in *module*."""
    places: dict[int, list[tuple[nn.Module, str]]] = defaultdict(list)
    for owner in module.modules():
        for name, parameter in owner.named_parameters(recurse=False, remove_duplicate=False):
            places[id(parameter)].append((owner, name))
    return [group for group in places.values() if len(group) > 1]


def retie(module: nn.Module, tied: Tied) -> None:
    """Make the groups of ``tied_groups`` one again: moving a module off the meta device parts them."""
    for (owner, name), *others in tied:
        for other, other_name in others:
            setattr(other, other_name, getattr(owner, name))


def _load_shard(target: DTensor, stored: object) -> None:
    shape, offset = compute_local_shape_and_global_offset(
        target.shape, target.device_mesh, target.placements
    )
    window = tuple(slice(start, start + size) for start, size in zip(offset, shape, strict=True))
    local = target.to_local()
    if local.numel():
        local.copy_(stored[window])  # type: ignore[index]
