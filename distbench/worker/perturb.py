"""Changes as small as rounding."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from distbench.strategies._torch import DTYPES, TorchEngine
from distbench.strategies.base import Engine, Setting
from distbench.workloads import _weights


def moved(setting: Setting, number: int) -> Path:
    """Return a file with the initial weights, each moved by one ulp up or down, drawn from *number*.

    A collective call: rank 0 writes the file, and the others wait for it.
    """
    file = setting.scratch / f"moved-{number}.safetensors"
    if setting.rank == 0:
        random = torch.Generator().manual_seed(number)
        save_file({name: _moved(x, random) for name, x in _weights.read(setting.weights).items()}, file)
    dist.barrier()
    return file


def round_gradients(engine: Engine, compute: str) -> None:
    """Round the gradients of a torch engine through the dtype *compute*."""
    assert isinstance(engine, TorchEngine), "references are torch's own"
    for parameter in engine.module.parameters():
        if parameter.grad is not None:
            parameter.grad.copy_(parameter.grad.to(DTYPES[compute]))


def _moved(tensor: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    if not tensor.is_floating_point():
        return tensor.clone()
    up = torch.randint(0, 2, tensor.shape, generator=random, dtype=torch.bool)
    infinity = torch.tensor(torch.inf, dtype=tensor.dtype)
    return torch.nextafter(tensor, torch.where(up, infinity, -infinity))
