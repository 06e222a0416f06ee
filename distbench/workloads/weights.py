"""The initial weights: drawn once from the seed, kept in one file, loaded by every strategy.

A seed alone is not enough: sharded initialisation draws its random numbers in a different order
(torchtitan, docs/converging.md), so every strategy would start from other weights.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from distbench.case import TORCH_NAMES
from distbench.files import whole

if TYPE_CHECKING:
    from distbench.workloads.base import Workload

_WRAPPERS = ("_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod", "_cast_module")

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, known) for name, known in TORCH_NAMES.items()}
"""Our names -> torch's dtypes."""

Tied = list[list[tuple[nn.Module, str]]]
"""Groups of (module, parameter name) that share one parameter."""


def plain_name(name: str) -> str:
    """*name* without the parts that wrappers insert: the name in the plain module."""
    parts = [part for part in name.split(".") if part not in _WRAPPERS]
    # DataParallel, DDP and DeepSpeed call what they wrap "module"
    while parts[0] == "module" and len(parts) > 1:
        parts = parts[1:]
    return ".".join(parts)


def save(workload: Workload, seed: int, file: Path, through: str = "fp32") -> None:
    """Draw the weights of *workload* from *seed* and write them, with all buffers, once each.

    Parameters are rounded through the dtype *through* and kept as fp32: frameworks
    that make fp32 master weights of 16-bit parameters then start from the same numbers as those
    that do it the other way round.
    """
    torch.manual_seed(seed)
    with torch.device("cpu"):
        module = workload.module()
    tensors = {name: tensor.detach() for name, tensor in _tensors(module).items()}
    for name, parameter in module.named_parameters():
        if parameter.is_floating_point():
            tensors[plain_name(name)] = parameter.detach().to(DTYPES[through]).float()
    with whole(file) as aside:
        save_file(apart(tensors), aside)


def skeleton(workload: Workload) -> nn.Module:
    """Module without weights: on the meta device, or on the CPU if it can't be built there."""
    with torch.device("meta" if workload.on_meta else "cpu"):
        return workload.module()


def loaded(workload: Workload, file: Path, device: torch.device) -> nn.Module:
    """Whole module on *device* with the weights of *file*."""
    module = skeleton(workload)
    tied = tied_groups(module)
    module = module.to_empty(device=device) if workload.on_meta else module.to(device)
    retie(module, tied)
    load(module, file)
    return module


def read(file: Path) -> dict[str, torch.Tensor]:
    """Every tensor of *file* by its plain name, memory-mapped."""
    with safe_open(file, framework="pt") as opened:
        return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - no mapping


def load(module: nn.Module, file: Path) -> None:
    """Copy the tensors of *file* into the parameters and buffers of *module*.

    Of a DTensor only this rank's shard is read; nothing is communicated.

    Raises:
        ValueError: the file and the module differ in names or shapes.
    """
    targets = _tensors(module)
    with safe_open(file, framework="pt") as opened:
        stored_names = set(opened.keys())
        missing, unexpected = sorted(targets.keys() - stored_names), sorted(stored_names - targets.keys())
        if missing or unexpected:
            raise ValueError(
                f"initial weights {file.name} are not of this module: "
                f"missing {', '.join(missing) or 'none'}; unexpected {', '.join(unexpected) or 'none'}"
            )
        with torch.no_grad():
            for name, target in targets.items():
                stored = opened.get_slice(name)
                if list(target.shape) != stored.get_shape():
                    raise ValueError(
                        f"initial weights {file.name}: {name} has shape {stored.get_shape()}, "
                        f"the module's has {list(target.shape)}"
                    )
                if isinstance(target, DTensor):
                    _load_shard(target, stored)
                else:
                    target.copy_(opened.get_tensor(name))


def tied_groups(module: nn.Module) -> Tied:
    """Groups of names that share one parameter in *module*."""
    places: dict[int, list[tuple[nn.Module, str]]] = defaultdict(list)
    for owner in module.modules():
        for name, parameter in owner.named_parameters(recurse=False, remove_duplicate=False):
            places[id(parameter)].append((owner, name))
    return [group for group in places.values() if len(group) > 1]


def retie(module: nn.Module, tied: Tied) -> None:  # noqa: ARG001 - says what is tied again
    """Make the groups of ``tied_groups`` one again: moving a module off the meta device parts them."""
    for (owner, name), *others in tied:
        for other, other_name in others:
            setattr(other, other_name, getattr(owner, name))


def _tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """Every parameter and buffer by plain name, a shared one by its first name."""
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        plain = plain_name(name)
        if plain in tensors:
            raise ValueError(
                f"two tensors of the module have the same name {plain} once wrappers are removed"
            )
        tensors[plain] = tensor
    return tensors


def apart(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors, each in its own memory, as safetensors requires."""
    taken: set[int] = set()
    copies = {}
    for name, tensor in tensors.items():
        place = tensor.untyped_storage().data_ptr()
        copies[name] = tensor.contiguous() if place not in taken else tensor.clone().contiguous()
        taken.add(place)
    return copies


def _load_shard(target: DTensor, stored: object) -> None:
    shape, offset = compute_local_shape_and_global_offset(target.shape, target.device_mesh, target.placements)
    window = tuple(slice(start, start + size) for start, size in zip(offset, shape, strict=True))
    local = target.to_local()
    if local.numel():
        local.copy_(stored[window])  # type: ignore[index]
