"""Fingerprints of tensors, small enough to keep for every step, by which the tensors can be compared.

A sketch is linear: the difference of two sketches is the sketch of the difference, and its length
is, on average, the length of the difference itself. So records with sketches can be compared later, without
the tensors.
"""

import hashlib
from typing import Any

import numpy as np
import torch

from distbench.trial import SKETCH


def describe(name: str, tensor: torch.Tensor) -> dict[str, Any]:
    """Fingerprint of *tensor*: its L2 norm, a digest of its bits, and its sketch in ``SKETCH``.

    Element i is added to number i mod 16 of the sketch with a random sign that depends on *name*
    and i alone (CountSketch: Charikar, Chen & Farach-Colton 2002, with fixed buckets). The squared
    length is unbiased, its relative standard deviation at most sqrt(2/16).
    """
    values = tensor.detach().to("cpu").contiguous().flatten()
    exact = values.double()
    padded = torch.zeros(-(-exact.numel() // len(SKETCH)) * len(SKETCH), dtype=torch.float64)
    torch.mul(exact, _signs(name, exact.numel()), out=padded[: exact.numel()])
    sums = padded.view(-1, len(SKETCH)).sum(dim=0)
    return {
        "norm": float(exact.norm()),
        "digest": digest(values),
        **dict(zip(SKETCH, sums.tolist(), strict=True)),
    }


def digest(tensor: torch.Tensor) -> str:
    """Hash of the bits of *tensor*."""
    values = tensor.detach().to("cpu").contiguous().flatten()
    return hashlib.blake2b(values.view(torch.uint8).numpy().data, digest_size=8).hexdigest()


def _signs(name: str, count: int) -> torch.Tensor:
    key = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")
    random = np.random.Generator(np.random.Philox(key)).bytes(-(-count // 8))
    bits = np.unpackbits(np.frombuffer(random, dtype=np.uint8), count=count)
    return torch.from_numpy(bits.astype(np.float64) * 2 - 1)
