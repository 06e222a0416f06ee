"""Perturbations as small as rounding."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from distbench.strategies.base import Engine, Setting
from distbench.strategies.torch_engine.engine import TorchEngine
from distbench.workloads import weights
from distbench.workloads.weights import DTYPES

# fraction of numbers moved by a whole ulp of the compute dtype, so that the variance is that of rounding
# once, ulp^2 / 12 (Higham 2002, section 2.8, models rounding errors as uniform)
_ROUNDED = 1 / 12


def moved(setting: Setting, number: int) -> Path:
    """File with the initial weights moved by about a rounding error, with random seed *number*.

    Each weight moves by one ulp of fp32, up or down; if the compute dtype has 16 bits, one in twelve moves by
    an ulp of that dtype instead, because fp32's is lost in the first cast. A collective call: the first
    rank of each node writes the file, since nodes may share no file system, and the others wait for it.
    """
    file = setting.scratch / f"moved-{number}-node{os.environ['GROUP_RANK']}.safetensors"
    if os.environ["LOCAL_RANK"] == "0":
        random = torch.Generator().manual_seed(number)
        compute = DTYPES[setting.case.precision.compute]
        initial = weights.read(setting.weights)
        save_file({name: _moved(weight, compute, random) for name, weight in initial.items()}, file)
    dist.barrier()
    return file


def round_gradients(engine: Engine, compute: str) -> None:
    """Round the gradients of a torch engine to the dtype *compute*."""
    assert isinstance(engine, TorchEngine), "references are torch's own"
    for parameter in engine.module.parameters():
        if parameter.grad is not None:
            parameter.grad.copy_(parameter.grad.to(DTYPES[compute]))


def _moved(tensor: torch.Tensor, compute: torch.dtype, random: torch.Generator) -> torch.Tensor:
    if not tensor.is_floating_point():
        return tensor.clone()
    up = torch.randint(0, 2, tensor.shape, generator=random, dtype=torch.bool)
    result = _by_an_ulp(tensor, up)
    if compute.itemsize < tensor.element_size():
        far = torch.rand(tensor.shape, generator=random) < _ROUNDED
        result = torch.where(far, _by_an_ulp(tensor.to(compute), up).to(tensor.dtype), result)
    return result


def _by_an_ulp(tensor: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    infinity = torch.tensor(torch.inf, dtype=tensor.dtype)
    return torch.nextafter(tensor, torch.where(up, infinity, -infinity))
