"""List the largest live tensors of a rank that ran out of memory, and keep the allocator's snapshot."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import torch
from torch import nn

from distbench.core.units import format_bytes
from distbench.strategies.torch_engine.readback import dtype_name

_MOST = 20


def live_tensor_lines(device_type: str) -> list[str]:
    """Lines on the largest storages of tensors on the device, the largest first; alike ones share a line.

    Only tensors that Python holds: not those that autograd alone keeps for the backward pass.
    """
    kinds: Counter[tuple[str, int]] = Counter(_storages(device_type))
    largest = sorted(kinds, key=lambda kind: -kind[1] * kinds[kind])[:_MOST]
    return [_line(name, size, kinds[name, size]) for name, size in largest]


def keep_snapshot(file: Path) -> bool:
    """Write the snapshot of CUDA's caching allocator to *file*, for pytorch.org/memory_viz.

    False: CUDA has none, or the disk is full.
    """
    if not torch.cuda.is_initialized():
        return False
    with suppress(OSError, RuntimeError):
        torch.cuda.memory._dump_snapshot(str(file))
        return True
    return False


def _storages(device_type: str) -> Iterator[tuple[str, int]]:
    """Description and bytes of each storage on the device; views of one storage count once."""
    # proxies and lazy modules may raise when they are asked for their class
    tensors = [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor)]
    gradients = {id(each.grad) for each in tensors if each.is_leaf and each.grad is not None}
    # a parameter names its storage rather than a view of it
    tensors.sort(key=lambda each: not isinstance(each, nn.Parameter))
    # a tensor without elements has no memory
    seen = {0}
    for tensor in tensors:
        # tensors without storage of their own, such as DTensor's wrappers
        with suppress(RuntimeError, NotImplementedError):
            storage = tensor.untyped_storage()
            if storage.device.type == device_type and storage.data_ptr() not in seen:
                seen.add(storage.data_ptr())
                yield _description(tensor, is_gradient=id(tensor) in gradients), storage.nbytes()


def _description(tensor: torch.Tensor, *, is_gradient: bool) -> str:
    kind = "parameter" if isinstance(tensor, nn.Parameter) else "gradient" if is_gradient else "tensor"
    return f"{kind} {list(tensor.shape)} {dtype_name([tensor.dtype])}"


def _line(name: str, size: int, count: int) -> str:
    times = f"{count} x " if count > 1 else ""
    return f"{times}{name} ({format_bytes(size * count)})"
