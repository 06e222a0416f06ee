"""The initial weights: the same numbers in every strategy and at every world size.

A seed alone is not enough: sharded initialisation draws its random numbers in a different order
(torchtitan, docs/converging.md), so every strategy would start from different weights. A file therefore has
the rule that draws each tensor, from its name and the index of an element alone, and a rank draws what it
keeps. The file does not grow with the model, unless exactly the numbers of the constructor are requested.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

import torch
from torch import nn
from torch._guards import active_fake_mode

from distbench.core.errors import UnsupportedCase
from distbench.workloads._initial import (
    DTYPES,
    WeightFile,
    open_weights,
    unshared,
    write_perturbation,
    write_weights,
)
from distbench.workloads._initialisation import InitRecorder, NoDraws
from distbench.workloads._perturbed_init import Perturbation

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

    from distbench.workloads.base import Workload

__all__ = ["DTYPES", "Perturbation", "WeightFile", "open_weights", "unshared", "write_perturbation"]

_WRAPPERS = ("_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod")

_CASTS = {
    torch.float64: nn.Module.double,
    torch.float32: nn.Module.float,
    torch.bfloat16: nn.Module.bfloat16,
    torch.float16: nn.Module.half,
}

_MAX_NAMES = 2
"""Maximum names of each dtype in a message."""

TiedGroups = list[list[tuple[nn.Module, str]]]
"""Groups of (module, parameter name) that share one parameter."""


STAGE_PREFIX = "_stage_"
"""Prefix of the names of pipeline stages in the module that holds those of a rank."""


def plain_name(name: str) -> str:
    """Name in the plain module: *name* without the parts that wrappers insert; empty for what they wrap."""
    parts = [part for part in name.split(".") if part not in _WRAPPERS and not part.startswith(STAGE_PREFIX)]
    # DataParallel, DDP and DeepSpeed call what they wrap "module"
    while len(parts) > 1 and parts[0] == "module":
        parts = parts[1:]
    return ".".join(parts)


def save_initial(
    workload: Workload, seed: int, file: Path, compute_dtype: str = "fp32", *, exact: bool = False
) -> None:
    """Write the initial weights of *workload* for *seed*, and all of its buffers.

    A parameter that its constructor fills with draws, or with one number, each element alike, is drawn from
    the same distribution when it is loaded; any other, and every one if *exact*, is stored as the constructor
    leaves it. All tensors of a pretrained workload (``Workload.pretrained``) are stored. Parameters are
    rounded through the dtype *compute_dtype* and kept as fp32: frameworks that make fp32 master weights of
    16-bit parameters then start from the same numbers as those that do it the other way round.

    Raises:
        UnsupportedCase: the parameters have several dtypes.
    """
    torch.manual_seed(seed)
    recorder = InitRecorder()
    module = workload.pretrained()
    if module is None:
        with torch.device("cpu"), nullcontext() if exact else recorder:
            module = workload.module()
    check_dtypes(module)
    write_weights(file, named_tensors(module), recorder, seed, compute_dtype)


def meta_module(workload: Workload) -> nn.Module:
    """Module without weights: on the meta device, or on the CPU if it can't be built there."""
    if _is_on_meta(workload):
        return without_numbers(workload)
    with torch.device("cpu"):
        return workload.module()


def without_numbers(workload: Workload) -> nn.Module:
    """Module on the meta device; its constructor draws no numbers, for which torch imports its compiler."""
    with torch.device("meta"), NoDraws():
        return workload.module()


def _is_on_meta(workload: Workload) -> bool:
    # a trace on fake tensors has no use for numbers that a constructor computes
    return workload.on_meta or active_fake_mode() is not None


def cast(module: nn.Module, dtype: torch.dtype, buffers: torch.dtype | None = None) -> nn.Module:
    """Cast the floating-point (not complex) tensors of *module* to *dtype*, its buffers to *buffers*.

    Raises:
        UnsupportedCase: its parameters have several dtypes, and a cast to one would change the model.
    """
    check_dtypes(module)
    whole = _CASTS[buffers or dtype](module)
    if buffers not in (None, dtype):
        for parameter in whole.parameters():
            if parameter.is_floating_point():
                parameter.data = parameter.data.to(dtype)
    return whole


def check_dtypes(module: nn.Module) -> None:
    """Check that the parameters of *module* have one dtype, and are real.

    Raises:
        UnsupportedCase: they have several, and a cast to one would change the model; or one is complex.
    """
    names: dict[torch.dtype, list[str]] = defaultdict(list)
    for name, parameter in module.named_parameters():
        if parameter.is_complex():
            raise UnsupportedCase(
                f"the parameter {name} of the model is complex ({parameter.dtype}), which distbench does not "
                "train; make it a real tensor with a last dimension of 2, and use torch.view_as_complex in "
                "forward"
            )
        if parameter.is_floating_point():
            names[parameter.dtype].append(name)
    if len(names) > 1:
        raise UnsupportedCase(_several_dtypes_text(names))


def _several_dtypes_text(names: Mapping[torch.dtype, Sequence[str]]) -> str:
    """Reason why a model whose parameters have these *names* by dtype is not trained."""
    short = {dtype: name for name, dtype in DTYPES.items()}
    groups = (
        f"{len(of):,} in {short.get(dtype, dtype)} "
        f"({', '.join(of[:_MAX_NAMES])}{', ...' * (len(of) > _MAX_NAMES)})"
        for dtype, of in sorted(names.items(), key=lambda group: len(group[1]))
    )
    return (
        f"the model has parameters of {len(names)} dtypes: {', '.join(groups)}; distbench keeps all "
        "parameters in precision.master, which would change the model; construct all parameters in one "
        "dtype"
    )


def load_module(
    workload: Workload,
    file: Path,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    buffers: torch.dtype | None = None,
) -> nn.Module:
    """Whole module on *device* with the weights of *file*, its tensors cast as in ``cast``."""
    module = cast(meta_module(workload), dtype, buffers)
    if _is_on_meta(workload):
        materialise(module, device)
    else:
        tied = tied_groups(module)
        module = module.to(device)
        retie(module, tied)
    load_into(module, file)
    return module


def materialise(module: nn.Module, device: torch.device) -> None:
    """Allocate the tensors of *module*, which is on the meta device, on *device*; tied ones only once."""
    tied = tied_groups(module)
    for _, *others in tied:
        for owner, name in others:
            owner._parameters[name] = None
    module.to_empty(device=device)
    retie(module, tied)


def read_tensors(file: Path) -> dict[str, torch.Tensor]:
    """Every tensor of *file*, whole, by its plain name; stored ones are memory-mapped."""
    with open_weights(file) as initial:
        return {name: initial.tensor(name) for name in initial.names}


def load_into(module: nn.Module, file: Path) -> None:
    """Fill the parameters and buffers of *module* with the weights of *file*.

    Of a DTensor only this rank's shard is made; nothing is communicated. Fake tensors, which have no values,
    stay as they are.

    Raises:
        ValueError: the file and the module differ in names or shapes.
    """
    if active_fake_mode():
        return
    targets = named_tensors(module)
    with open_weights(file) as initial, torch.no_grad():
        missing, unexpected = sorted(targets.keys() - initial.names), sorted(initial.names - targets.keys())
        if missing or unexpected:
            raise ValueError(
                f"initial weights {file.name} do not match this module: missing "
                f"{', '.join(missing) or 'none'}; unexpected {', '.join(unexpected) or 'none'}"
            )
        for name, target in targets.items():
            fill_tensor(target, initial, name)


def load_stage(part: nn.Module, file: Path, copies: Mapping[str, str]) -> None:
    """Fill the parameters and buffers of *part*, a part of the model in *file*.

    Args:
        copies: Name of a parameter of *part* -> the name that it has in the whole model, where they differ.

    Raises:
        ValueError: the file has no tensor of that name, or one of another shape.
    """
    with open_weights(file) as initial, torch.no_grad():
        for name, target in named_tensors(part).items():
            known = copies.get(name, name)
            if known not in initial.names:
                raise ValueError(f"initial weights {file.name} do not match this model: they have no {known}")
            fill_tensor(target, initial, known)


class ModuleMaterialiser:
    """Materialiser of the parts of a module on the meta device; fills buffers, but not parameters.

    Called with a part, it makes the tensors of that part, and not those of the parts inside it.
    """

    def __init__(self, module: nn.Module, initial: WeightFile, device: torch.device) -> None:
        self._initial, self._device = initial, device
        # with the tensors, as an id is unique only as long as its owner lives
        self._names = {id(tensor): (name, tensor) for name, tensor in named_tensors(module).items()}
        self._tied = {id(getattr(owner, name)) for (owner, name), *_ in tied_groups(module)}
        self._made: dict[int, torch.Tensor] = {}

    def __call__(self, part: nn.Module) -> None:
        parameters = part.named_parameters(recurse=False, remove_duplicate=False)
        buffers = part.named_buffers(recurse=False, remove_duplicate=False)
        for name, tensor in [*parameters, *buffers]:
            if id(tensor) in self._names:
                setattr(part, name, self._materialise(tensor))

    def _materialise(self, tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) in self._made:
            return self._made[id(tensor)]
        real, name = torch.empty_like(tensor, device=self._device), self._names[id(tensor)][0]
        if isinstance(tensor, nn.Parameter):
            check_shape(tensor, self._initial, name)
            real = nn.Parameter(real, tensor.requires_grad)
        else:
            fill_tensor(real, self._initial, name)
        if id(tensor) in self._tied:
            self._made[id(tensor)] = real
        return real


def fill_tensor(target: torch.Tensor, initial: WeightFile, name: str) -> None:
    """Copy the tensor *name* of *initial* into *target*; of a DTensor, this rank's shard.

    Raises:
        ValueError: they differ in shape.
    """
    check_shape(target, initial, name)
    if _is_sharded(target):
        _fill_shard(target, initial, name)
    elif target.is_contiguous():
        initial.fill(target.view(-1), name)
    else:
        target.copy_(initial.tensor(name))


def check_shape(target: torch.Tensor, initial: WeightFile, name: str) -> None:
    """Check that *target* has the shape of the tensor *name* of *initial*.

    Raises:
        ValueError: it does not.
    """
    if list(target.shape) != initial.shape(name):
        raise ValueError(
            f"initial weights: {name} has shape {initial.shape(name)}, but the module expects "
            f"{list(target.shape)}"
        )


def tied_groups(module: nn.Module) -> TiedGroups:
    """Groups of names that share one parameter in *module*."""
    places: dict[int, list[tuple[nn.Module, str]]] = defaultdict(list)
    for owner in module.modules():
        for name, parameter in owner.named_parameters(recurse=False, remove_duplicate=False):
            places[id(parameter)].append((owner, name))
    return [group for group in places.values() if len(group) > 1]


def retie(module: nn.Module, tied: TiedGroups) -> None:  # noqa: ARG001 - says what is tied again
    """Tie the groups of ``tied_groups`` again: moving a module off the meta device separates them."""
    for (owner, name), *others in tied:
        for other, other_name in others:
            setattr(other, other_name, getattr(owner, name))


def named_tensors(module: nn.Module) -> dict[str, torch.Tensor]:
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


def _is_sharded(tensor: torch.Tensor) -> TypeGuard[DTensor]:
    """True if *tensor* is a ``DTensor``."""
    # its module takes a second to import, and where it is not imported there is none
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def _fill_shard(target: DTensor, initial: WeightFile, name: str) -> None:
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape, offset = compute_local_shape_and_global_offset(target.shape, target.device_mesh, target.placements)
    local = target.to_local()
    if not local.numel():
        return
    if local.is_contiguous() and shape[1:] == target.shape[1:]:
        # rows are consecutive
        initial.fill(local.view(-1), name, start=offset[0] * math.prod(shape[1:]))
        return
    window = tuple(slice(start, start + size) for start, size in zip(offset, shape, strict=True))
    local.copy_(initial.tensor(name)[window])
