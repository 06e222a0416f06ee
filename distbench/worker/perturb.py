"""Changes as small as rounding."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from distbench.strategies._torch import DTYPES, TorchEngine
from distbench.strategies.base import Engine, Setting
from distbench.workloads import _weights

# the share of numbers that move by a whole ulp of the dtype of compute, so that the variance of the moves
# is that of rounding once, ulp^2 / 12 (Higham 2002, section 2.8, takes rounding errors as uniform)
_ROUNDED = 1 / 12


def moved(setting: Setting, number: int) -> Path:
    """Return a file with the initial weights moved by as much as rounding, drawn from *number*.

    Each by one ulp of fp32, up or down, and where the compute is in 16 bits, one in twelve by an
    ulp of that dtype instead: fp32's is lost there in the first cast. A collective call: rank 0 writes
    the file, and the others wait for it.
    """
    file = setting.scratch / f"moved-{number}.safetensors"
    if setting.rank == 0:
        random = torch.Generator().manual_seed(number)
        compute = DTYPES[setting.case.precision.compute]
        weights = _weights.read(setting.weights)
        save_file({name: _moved(weight, compute, random) for name, weight in weights.items()}, file)
    dist.barrier()
    return file


def round_gradients(engine: Engine, compute: str) -> None:
    """Round the gradients of a torch engine through the dtype *compute*."""
    assert isinstance(engine, TorchEngine), "references are torch's own"
    for parameter in engine.module.parameters():
        if parameter.grad is not None:
            parameter.grad.copy_(parameter.grad.to(DTYPES[compute]))


def _moved(tensor: torch.Tensor, compute: torch.dtype, random: torch.Generator) -> torch.Tensor:
    if not tensor.is_floating_point():
        return tensor.clone()
    up = torch.randint(0, 2, tensor.shape, generator=random, dtype=torch.bool)
    found = _by_an_ulp(tensor, up)
    if compute.itemsize < tensor.element_size():
        far = torch.rand(tensor.shape, generator=random) < _ROUNDED
        found = torch.where(far, _by_an_ulp(tensor.to(compute), up).to(tensor.dtype), found)
    return found


def _by_an_ulp(tensor: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    infinity = torch.tensor(torch.inf, dtype=tensor.dtype)
    return torch.nextafter(tensor, torch.where(up, infinity, -infinity))
