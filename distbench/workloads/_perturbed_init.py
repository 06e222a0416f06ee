"""Perturb initial weights by about one rounding error, independently of sharding.

A perturbation depends only on the tensor's name and the element's index in it, so any part of a tensor is
perturbed without the rest, on any rank.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch

from distbench.workloads.hashing import hash_counters

# fraction of numbers moved by a whole ulp of the compute dtype, so that the variance is that of rounding
# once, ulp^2 / 12 (Higham 2002, section 2.8, models rounding errors as uniform)
_COMPUTE_ULP_SHARE = 2**31 // 12
PERTURB_CHUNK = 2**16
"""Elements per chunk: what stays in the cache of a core."""


@dataclass(frozen=True)
class Perturbation:
    """Perturbation of the initial weights in the file ``base_file``."""

    base_file: str
    """Path of the weight file."""
    seed: int
    """Random seed."""
    compute_dtype: str
    """Dtype in which the weights are used."""


def perturb(
    part: torch.Tensor, perturbation: Perturbation, name: str, start: int, compute: torch.dtype
) -> torch.Tensor:
    """Perturb *part* (n,), the elements of the tensor *name* from *start* on; integers stay as they are.

    Each weight changes by one ulp of its own dtype, up or down; if *compute* is shorter, one in twelve
    changes by an ulp of that dtype instead, because the smaller change is lost in the first cast.
    """
    if not part.is_floating_point():
        return part
    # the sign of each hash is the direction, and the rest decides the distance
    drawn = hash_counters(_seed(name, perturbation.seed) + start, part.numel(), part.device)
    up = drawn < 0
    near = _next_ulp(part, up)
    if compute.itemsize >= part.element_size():
        return near
    is_far = drawn.bitwise_and_(2**31 - 1) < _COMPUTE_ULP_SHARE
    return torch.where(is_far, _next_ulp(part.to(compute), up).to(part.dtype), near)


def _seed(name: str, number: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"{number} {name}".encode(), digest_size=4).digest(), "big")


def _next_ulp(tensor: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return torch.nextafter(tensor, torch.where(up, torch.inf, -torch.inf).to(tensor.dtype))
