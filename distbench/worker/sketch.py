"""Tensor fingerprints: L2 norm, hash and CountSketch, small enough to keep for every step.

A sketch is linear: the difference of two sketches is the sketch of the difference, and its length
is, on average, the length of the difference itself. So records with sketches can be compared later, without
the tensors. They are made on the device of the tensors, in chunks that stay in a cache, and are the same on
every device except for the rounding of sums in fp64.
"""

import functools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.nn import functional

from distbench.ipc.trial_files import SKETCH_COLUMNS
from distbench.workloads.hashing import hash_counters

# part of each digest: version of the formulas of sums and digest (``fingerprint_version``)
_VERSION = 2
# a period: elements whose signs are the bits of common words, and words with common random factors
_PERIOD = 2**16
_BITS = 32
# elements per chunk: fit into the cache of a core; keep another device busy
_CPU_CHUNK, _DEVICE_CHUNK = _PERIOD, 256 * _PERIOD
_VIEW_DTYPES = {1: torch.int8, 2: torch.int16}
_PERIOD_FACTOR = 0x9E3779B97F4A7C15 - 2**64


NamedTensors = Iterable[tuple[str, torch.Tensor]]
"""Tensors by name, which may be gathered one at a time."""


def sketch_tensors(
    tensors: NamedTensors, chunks_of: Callable[[str, torch.Tensor], Iterable[torch.Tensor]] | None = None
) -> dict[str, dict[str, Any]]:
    """Fingerprints of *tensors*: L2 norm, digest of the bits, and sketch in ``SKETCH_COLUMNS``.

    *chunks_of* gives the ``tensor_chunks`` for norm and sketch in place of the tensor's own. Waits for the
    device once.
    """
    names, sums, sketches = [], [], []
    for name, tensor in tensors:
        names.append(name)
        sums.append(_digest(tensor))
        sketches.append(count_sketch(chunks_of(name, tensor) if chunks_of else tensor_chunks(tensor)))
    if not names:
        return {}
    rows = zip(names, torch.stack(sketches).tolist(), _digest_texts(sums), strict=True)
    return {
        name: {"norm": math.sqrt(square), **dict(zip(SKETCH_COLUMNS, numbers, strict=True)), "digest": text}
        for name, (*numbers, square), text in rows
    }


def hash_tensors(tensors: NamedTensors) -> dict[str, str]:
    """Hash of the bits of each of *tensors*; waits for their device once.

    The sum of its words of 32 bits, each times a random number of 64 bits, modulo 2**64 (multilinear hashing:
    Carter & Wegman 1979), which does not depend on the order.
    """
    sums = {name: _digest(tensor) for name, tensor in tensors}
    return dict(zip(sums, _digest_texts([*sums.values()]), strict=True))


def tensor_chunks(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Consecutive parts (n,) of *tensor*, as ``count_sketch`` takes them."""
    return iter(_split(_flat(tensor)))


def count_sketch(chunks: Iterable[torch.Tensor]) -> torch.Tensor:
    """CountSketch and squared norm (17,), fp64, of the tensor with ``tensor_chunks`` *chunks*, on its device.

    Element i is added to sum i mod 16 with a random sign that depends on i alone (CountSketch: Charikar,
    Chen & Farach-Colton 2002, with fixed buckets). The squared length is unbiased, its relative standard
    deviation sqrt(2/16) if all buckets hold equally much.
    """
    first, made = 0, []
    for part in chunks:
        if not part.numel():
            made.append(torch.zeros(len(SKETCH_COLUMNS) + 1, dtype=torch.float64, device=part.device))
            continue
        signed = _apply_signs(part, first)
        rest = -signed.numel() % len(SKETCH_COLUMNS)
        padded = functional.pad(signed, (0, rest)) if rest else signed
        made.append(torch.cat([padded.view(-1, len(SKETCH_COLUMNS)).sum(0), torch.dot(signed, signed)[None]]))
        first += signed.numel()
    return made[0] if len(made) == 1 else torch.stack(made).sum(0)


def _digest_texts(sums: list[torch.Tensor]) -> list[str]:
    return [f"{_VERSION}-{value % 2**64:016x}" for value in torch.stack(sums).tolist()] if sums else []


def _digest(tensor: torch.Tensor) -> torch.Tensor:
    flat = _flat(tensor)
    words = flat.view(_VIEW_DTYPES.get(flat.element_size(), torch.int32))
    first, sums = 0, []
    for part in _split(words):
        sums.append(_weighted_sum(part, first // _PERIOD))
        first += part.numel()
    total = sums[0] if len(sums) == 1 else torch.stack(sums).sum()
    return total + words.numel()


def _weighted_sum(words: torch.Tensor, period: int) -> torch.Tensor:
    """Sum () of *words* (n,) times their factors; they begin in that *period* of their tensor."""
    factors = _factors(words.device)
    if words.numel() <= _PERIOD:
        sums = torch.mul(words, factors[: words.numel()]).sum()[None]
    else:
        whole = functional.pad(words, (0, -words.numel() % _PERIOD)).view(-1, _PERIOD)
        sums = torch.mul(whole, factors).sum(1)
    if period == 0 and len(sums) == 1:
        return sums[0]
    # the factors are the same in every period, so each period has an additional factor
    return (
        sums * (hash_counters(period, len(sums), words.device).to(torch.int64) * _PERIOD_FACTOR + 1)
    ).sum()


def _apply_signs(part: torch.Tensor, first: int) -> torch.Tensor:
    """*part* (n,) in fp64 with random signs; *first* is the index of its first element."""
    if part.dtype is torch.float64 or not part.is_floating_point():
        flips = _sign_bits(first, part.numel(), part.device).to(torch.int64) << _BITS
        long: torch.Tensor = part.double().view(torch.int64) ^ flips
        return long.view(torch.float64)
    flips = _sign_bits(first, part.numel(), part.device)
    bits: torch.Tensor = part.float().view(torch.int32) ^ flips
    return bits.view(torch.float32).double()


def _sign_bits(first: int, count: int, device: torch.device) -> torch.Tensor:
    """Sign bits (count,), int32, that flip elements from index *first* on, which begins a period."""
    periods = -(-count // _PERIOD)
    made = (
        _cached_sign_bits(device) if (first, periods) == (0, 1) else _make_sign_bits(first, periods, device)
    )
    return made[:count]


@functools.cache
def _cached_sign_bits(device: torch.device) -> torch.Tensor:
    return _make_sign_bits(0, 1, device)


def _make_sign_bits(first: int, periods: int, device: torch.device) -> torch.Tensor:
    words = hash_counters(first // _BITS, periods * _PERIOD // _BITS, device).view(periods, 1, -1)
    bits = torch.arange(_BITS, dtype=torch.int32, device=device)[:, None]
    return torch.bitwise_left_shift(words, bits).bitwise_and_(-(2**31)).flatten()


@functools.cache
def _factors(device: torch.device) -> torch.Tensor:
    """Random numbers of 64 bits (period,), each from two hashes that no period uses."""
    high, low = hash_counters(-2 * _PERIOD, 2 * _PERIOD, device).to(torch.int64).view(2, -1)
    return torch.bitwise_left_shift(high, _BITS).bitwise_xor_(low)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Flat numbers (n,) of *tensor*; a complex one has two for each element."""
    flat = tensor.detach().resolve_conj().reshape(-1).contiguous()
    return torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat


def _split(flat: torch.Tensor) -> tuple[torch.Tensor, ...]:
    size = _CPU_CHUNK if flat.device.type == "cpu" else _DEVICE_CHUNK
    # most tensors of most models are small, and cutting them takes as long as adding them up
    return (flat,) if flat.numel() <= size else flat.split(size)
