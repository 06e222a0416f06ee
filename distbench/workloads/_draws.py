"""Counter-based random numbers by tensor name and element index, independent of sharding.

Element i of a tensor takes 16 bits of Philox4x64-10 (Salmon et al. 2011, "Parallel random numbers: as easy
as 1, 2, 3", doi:10.1145/2063384.2063405), whose key comes from the seed and the tensor's name and whose
counter is i // 16. So any part of a tensor is drawn without the rest. The bits pick one of 65,536
quantiles of the tensor's distribution (inversion: Devroye 1986, section II.2). All of it is integers and a
table, so every device and every sharding gets the same bits; a formula such as Box-Muller's depends on a
library's logarithm.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
import torch

QUANTILE_COUNT = 1 << 16
"""Quantiles of a distribution: one for each value of 16 bits."""
_DRAWS_PER_BLOCK = 16
"""Elements drawn from one value of the counter: 4 words of 64 bits."""
# elements per chunk: few enough for a cache, many enough to make the cost of calls negligible
_CHUNK = 1 << 18


def philox_key(seed: int, name: str) -> int:
    """Philox's key for the tensor *name*: 128 bits of SHA-256."""
    return int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:16], "little")


def draw_chunks(quantiles: np.ndarray, key: int, start: int, stop: int) -> Iterator[torch.Tensor]:
    """Yield elements *start* to *stop* of the flat tensor of *key*, in chunks, on the CPU.

    *quantiles* has the shape (65536,); the elements have its dtype.
    """
    while start < stop:
        end = min(stop, start - start % _CHUNK + _CHUNK)
        yield torch.from_numpy(quantiles[_random_bits(key, start, end)])
        start = end


def _random_bits(key: int, start: int, stop: int) -> np.ndarray:
    """16 random bits for each of the elements *start* to *stop* (stop - start,)."""
    first = start // _DRAWS_PER_BLOCK
    blocks = -(-stop // _DRAWS_PER_BLOCK) - first
    words = np.random.Philox(key=key, counter=first).random_raw(blocks * 4)
    bits: np.ndarray = words.astype("<u8", copy=False).view("<u2")
    return bits[start - first * _DRAWS_PER_BLOCK :][: stop - start]
