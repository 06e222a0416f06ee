"""Initial weights moved by about a rounding error: each by its tensor's name and its place there alone.

So any part of a tensor is moved without the rest, wherever it is made.
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
"""Elements that are moved together: what stays in the cache of a core."""


@dataclass(frozen=True)
class Perturbation:
    """How the initial weights in the file ``base_file`` are moved."""

    base_file: str
    """Path of the file."""
    seed: int
    """Random seed."""
    compute_dtype: str
    """Dtype that they are computed in."""


def perturb(
    part: torch.Tensor, perturbation: Perturbation, name: str, start: int, compute: torch.dtype
) -> torch.Tensor:
    """*part* (n,), the elements of the tensor *name* from *start* on, moved; whole numbers stay as they are.

    Each weight moves by one ulp of its own dtype, up or down; if *compute* is shorter, one in twelve moves by
    an ulp of that dtype instead, because the other is lost in the first cast.
    """
    if not part.is_floating_point():
        return part
    # of each hash the sign says where to, and the rest how far
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
