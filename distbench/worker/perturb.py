"""Perturbations as small as rounding."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from distbench.strategies.base import Engine, Setting
from distbench.strategies.torch_engine.engine import TorchEngine
from distbench.worker.hashing import hashed
from distbench.worker.sketch import parts
from distbench.workloads import weights
from distbench.workloads.weights import DTYPES

# fraction of numbers moved by a whole ulp of the compute dtype, so that the variance is that of rounding
# once, ulp^2 / 12 (Higham 2002, section 2.8, models rounding errors as uniform)
_ROUNDED = 2**31 // 12


def moved(setting: Setting, number: int, alive: Callable[[], None]) -> Path:
    """File with the initial weights moved by about a rounding error, with random seed *number*.

    Each weight moves by one ulp of fp32, up or down; if the compute dtype has 16 bits, one in twelve moves by
    an ulp of that dtype instead, because fp32's is lost in the first cast. A collective call: the first
    rank of each node writes the file, since nodes may share no file system, and the others wait for it.
    *alive* is called before each tensor: all of a large model take longer than a step.
    """
    file = setting.scratch / f"moved-{number}-node{os.environ['GROUP_RANK']}.safetensors"
    if os.environ["LOCAL_RANK"] == "0":
        compute = DTYPES[setting.case.precision.compute]
        tensors = {}
        for name, weight in weights.read(setting.weights).items():
            alive()
            tensors[name] = _moved(weight, compute, _seed(name, number))
        save_file(tensors, file)
    dist.barrier()
    return file


def round_gradients(engine: Engine, compute: str) -> None:
    """Round the gradients of a torch engine to the dtype *compute*."""
    assert isinstance(engine, TorchEngine), "references are torch's own"
    for parameter in engine.module.parameters():
        if parameter.grad is not None:
            parameter.grad.copy_(parameter.grad.to(DTYPES[compute]))


def _seed(name: str, number: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"{number} {name}".encode(), digest_size=4).digest(), "big")


def _moved(tensor: torch.Tensor, compute: torch.dtype, seed: int) -> torch.Tensor:
    if not tensor.is_floating_point():
        return tensor.clone()
    moved, first = torch.empty_like(tensor, memory_format=torch.contiguous_format), seed
    for part, into in zip(parts(tensor), parts(moved), strict=True):
        # of each hash the sign says where to, and the rest how far
        drawn = hashed(first, part.numel(), part.device)
        first += part.numel()
        up = drawn < 0
        into.copy_(_by_an_ulp(part, up))
        if compute.itemsize < part.element_size():
            far = drawn.bitwise_and_(2**31 - 1) < _ROUNDED
            torch.where(far, _by_an_ulp(part.to(compute), up).to(part.dtype), into, out=into)
    return moved


def _by_an_ulp(tensor: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return torch.nextafter(tensor, torch.where(up, torch.inf, -torch.inf).to(tensor.dtype))
