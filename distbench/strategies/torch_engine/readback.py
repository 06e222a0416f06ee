"""Read tensors back: dtypes, devices, full values, and bytes by kind."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from distbench.strategies.engine import MEMORY_KINDS
from distbench.strategies.torch_engine import device_meshes
from distbench.workloads.weights import DTYPES

# elements: 128 MiB in fp64
_CHUNK_ELEMENTS = 2**24
_DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def device_name(tensors: Iterable[torch.Tensor]) -> str | None:
    """Device type of the tensors, or all of them: ``cpu+cuda``; None without tensors."""
    return "+".join(sorted({tensor.device.type for tensor in tensors})) or None


def dtype_name(dtypes: Iterable[torch.dtype]) -> str:
    """Short name of the dtype, or all names if they are mixed: ``bf16+fp32``."""
    return "+".join(sorted({_DTYPE_NAMES.get(dtype, str(dtype)) for dtype in dtypes}))


def parameter_counts(
    parameters: Iterable[torch.Tensor], elements: Callable[[torch.Tensor], int] = torch.Tensor.numel
) -> dict[str, int]:
    """Numbers of elements of all *parameters* and of the trained ones.

    *elements* returns, for a sharded parameter, the number of elements of the full one.
    """
    every = list(parameters)
    trained = [parameter for parameter in every if parameter.requires_grad]
    return {
        "parameters": sum(map(elements, every)),
        "trained_parameters": sum(map(elements, trained)),
        "trainable_tensors": len(trained),
    }


def full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The gathered DTensor, or the tensor itself. Collective call if sharded."""
    return tensor.full_tensor() if isinstance(tensor, dist.tensor.DTensor) else tensor


def tensor_mesh_sizes(tensor: DTensor) -> dict[str, int]:
    """Number of ranks of each dimension of the mesh of *tensor*."""
    return device_meshes.mesh_sizes(tensor.device_mesh)


def copy_to_host(tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Copies of named *tensors* in host memory on rank 0; the other ranks keep none.

    Collective call if *tensors* are gathered one after another: every rank iterates over all of them.
    """
    is_first = dist.get_rank() == 0
    return {name: tensor.to("cpu", copy=True) for name, tensor in tensors if is_first}


def sum_of_squares(tensor: torch.Tensor) -> torch.Tensor:
    """Sum of the squares of all elements in fp64, on the device of *tensor*.

    Computed piece by piece, so that no copy of a large tensor is made.
    """
    pieces = (piece.double() for piece in tensor.flatten().split(_CHUNK_ELEMENTS))
    return torch.stack([piece.dot(piece) for piece in pieces]).sum()


def l2_norm(tensors: Iterable[torch.Tensor]) -> float:
    """L2 norm of all *tensors* together, full or sharded (DTensor). Collective call if sharded.

    In fp64: on a CPU torch (2.13) adds up the squares of fp32 in fp32, one after another, so that the norm of
    16 million elements is off by 6e-4, and that of their shards by less.
    """
    sums: dict[Any, torch.Tensor] = {}
    for tensor in tensors:
        local, place = tensor, None
        if isinstance(tensor, DTensor) and any(each.is_partial() for each in tensor.placements):
            # squares of summands don't add up to those of the sum
            local = tensor.full_tensor()
        elif isinstance(tensor, DTensor):
            local, place = tensor.to_local(), (tensor.device_mesh, tensor.placements)
        squares = sum_of_squares(local)
        sums[place] = sums[place] + squares if place in sums else squares
    return math.sqrt(sum(float(_sum_over_shards(place, squares)) for place, squares in sums.items()))


def _sum_over_shards(place: Any, squares: torch.Tensor) -> torch.Tensor:
    """*squares* summed over all ranks of *place* with different shards; unchanged without a place."""
    if place is None:
        return squares
    mesh, placements = place
    parts = [Replicate() if each.is_replicate() else Partial() for each in placements]
    return DTensor.from_local(squares, mesh, parts).full_tensor()


def effective_scale(scale: float) -> float | None:
    """Live loss scale as ``effective`` reports it: None if it changes nothing."""
    return None if scale == 1 else scale


class StorageCounter:
    """Counts bytes by storage, each once: views are free, tied weights count once.

    The first kind that counts a storage keeps it, so a strategy counts in a meaningful order: parameters
    first, and a bucket before or after the gradients that may be inside it.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._seen: set[tuple[str, int]] = set()
        self.bytes = dict.fromkeys((*MEMORY_KINDS, "host"), 0)

    def count(self, kind: str, *nested: Any) -> None:
        """Add the storages of the tensors in *nested* (arbitrarily nested) that are not counted yet."""
        for tensor in _flatten_tensors(nested):
            storage, device = tensor.untyped_storage(), tensor.device.type
            place = (device, storage.data_ptr())
            if not storage.nbytes() or device == "meta" or place in self._seen:
                continue
            self._seen.add(place)
            self.add_bytes(kind, storage.nbytes(), host=device != self._device.type)

    def count_external(self, kind: str, tensors: Iterable[torch.Tensor]) -> None:
        """Add storages of host memory that torch's allocator has not made; each is counted only here."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            self._seen.add((tensor.device.type, storage.data_ptr()))
            self.add_bytes(kind, storage.nbytes(), host=True)

    def add_bytes(self, kind: str, size: int, *, host: bool = False) -> None:
        """Add bytes that no reachable tensor holds, as reported by a live object."""
        self.bytes[kind] += size
        self.bytes["host"] += size if host else 0


def _flatten_tensors(nested: Any) -> Iterator[torch.Tensor]:
    if is_traceable_wrapper_subclass(nested):
        # a DTensor is its shard, and a quantized one its codes and scales
        yield from _flatten_tensors([getattr(nested, name) for name in nested.__tensor_flatten__()[0]])
    elif isinstance(nested, torch.Tensor):
        yield nested
    elif isinstance(nested, dict):
        yield from _flatten_tensors(nested.values())
    elif isinstance(nested, Iterable) and not isinstance(nested, str):
        for part in nested:
            yield from _flatten_tensors(part)
