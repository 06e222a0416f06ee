"""Fingerprints of tensors, small enough to keep for every step, by which the tensors can be compared.

A sketch is linear: the difference of two sketches is the sketch of the difference, and its length
is, on average, the length of the difference itself. So records with sketches can be compared later, without
the tensors. They are made where the tensors are, in parts that stay in a cache, and are the same on every
device but for the rounding of sums in fp64.
"""

import functools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.nn import functional

from distbench.ipc.trial_files import SKETCH
from distbench.workloads.hashing import hashed

# named in each digest, which says by what law sums and digest were made (``law_of``)
_LAW = 2
# elements that share the bits of as many words of random signs, and words that share random factors
_PERIOD = 2**16
_BITS = 32
# elements at once: what stays in the cache of a core, and what keeps another device busy
_ON_CPU, _ELSEWHERE = _PERIOD, 256 * _PERIOD
_SHORT = {1: torch.int8, 2: torch.int16}
_ODD = 0x9E3779B97F4A7C15 - 2**64


Named = Iterable[tuple[str, torch.Tensor]]
"""Tensors by name, which may be gathered one at a time."""


def described(
    tensors: Named, parts_of: Callable[[str, torch.Tensor], Iterable[torch.Tensor]] | None = None
) -> dict[str, dict[str, Any]]:
    """Fingerprint of each of *tensors*: its L2 norm, a digest of its bits, and its sketch in ``SKETCH``.

    *parts_of* gives the ``parts`` of which norm and sketch are made in place of the tensor's own. The
    device is waited for once.
    """
    names, sums, sketches = [], [], []
    for name, tensor in tensors:
        names.append(name)
        sums.append(_digest(tensor))
        sketches.append(sketch(parts_of(name, tensor) if parts_of else parts(tensor)))
    if not names:
        return {}
    told = zip(names, torch.stack(sketches).tolist(), _texts(sums), strict=True)
    return {
        name: {"norm": math.sqrt(square), **dict(zip(SKETCH, numbers, strict=True)), "digest": text}
        for name, (*numbers, square), text in told
    }


def digests(tensors: Named) -> dict[str, str]:
    """Hash of the bits of each of *tensors*; waits for their device once.

    The sum of its words of 32 bits, each times a random number of 64 bits, modulo 2**64 (multilinear hashing:
    Carter & Wegman 1979), which adds up in any order.
    """
    sums = {name: _digest(tensor) for name, tensor in tensors}
    return dict(zip(sums, _texts([*sums.values()]), strict=True))


def parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Consecutive parts (n,) of *tensor*, as ``sketch`` takes them."""
    return iter(_split(_flat(tensor)))


def sketch(of: Iterable[torch.Tensor]) -> torch.Tensor:
    """Sums and squared norm (17,), fp64, of the tensor with the ``parts`` *of*, on its device.

    Element i is added to sum i mod 16 with a random sign that depends on i alone (CountSketch: Charikar,
    Chen & Farach-Colton 2002, with fixed buckets). The squared length is unbiased, its relative standard
    deviation sqrt(2/16) where the buckets hold as much each.
    """
    first, made = 0, []
    for part in of:
        if not part.numel():
            made.append(torch.zeros(len(SKETCH) + 1, dtype=torch.float64, device=part.device))
            continue
        signed = _signed(part, first)
        rest = -signed.numel() % len(SKETCH)
        padded = functional.pad(signed, (0, rest)) if rest else signed
        made.append(torch.cat([padded.view(-1, len(SKETCH)).sum(0), torch.dot(signed, signed)[None]]))
        first += signed.numel()
    return made[0] if len(made) == 1 else torch.stack(made).sum(0)


def _texts(sums: list[torch.Tensor]) -> list[str]:
    return [f"{_LAW}-{value % 2**64:016x}" for value in torch.stack(sums).tolist()] if sums else []


def _digest(tensor: torch.Tensor) -> torch.Tensor:
    flat = _flat(tensor)
    words = flat.view(_SHORT.get(flat.element_size(), torch.int32))
    first, sums = 0, []
    for part in _split(words):
        sums.append(_weighed(part, first // _PERIOD))
        first += part.numel()
    total = sums[0] if len(sums) == 1 else torch.stack(sums).sum()
    return total + words.numel()


def _weighed(words: torch.Tensor, period: int) -> torch.Tensor:
    """Sum () of *words* (n,), which begin in that *period* of their tensor, times their factors."""
    factors = _factors(words.device)
    if words.numel() <= _PERIOD:
        sums = torch.mul(words, factors[: words.numel()]).sum()[None]
    else:
        whole = functional.pad(words, (0, -words.numel() % _PERIOD)).view(-1, _PERIOD)
        sums = torch.mul(whole, factors).sum(1)
    if period == 0 and len(sums) == 1:
        return sums[0]
    # the factors are the same in every period, and so each period has one of its own
    return (sums * (hashed(period, len(sums), words.device).to(torch.int64) * _ODD + 1)).sum()


def _signed(part: torch.Tensor, first: int) -> torch.Tensor:
    """*part* (n,) in fp64 with random signs, where *first* is the place of its first element."""
    if part.dtype is torch.float64 or not part.is_floating_point():
        flips = _flips(first, part.numel(), part.device).to(torch.int64) << _BITS
        long: torch.Tensor = part.double().view(torch.int64) ^ flips
        return long.view(torch.float64)
    flips = _flips(first, part.numel(), part.device)
    bits: torch.Tensor = part.float().view(torch.int32) ^ flips
    return bits.view(torch.float32).double()


def _flips(first: int, count: int, device: torch.device) -> torch.Tensor:
    """Sign bits (count,), int32, by which elements from place *first* on are flipped; it begins a period."""
    periods = -(-count // _PERIOD)
    made = _first_flips(device) if (first, periods) == (0, 1) else _some_flips(first, periods, device)
    return made[:count]


@functools.cache
def _first_flips(device: torch.device) -> torch.Tensor:
    return _some_flips(0, 1, device)


def _some_flips(first: int, periods: int, device: torch.device) -> torch.Tensor:
    words = hashed(first // _BITS, periods * _PERIOD // _BITS, device).view(periods, 1, -1)
    bits = torch.arange(_BITS, dtype=torch.int32, device=device)[:, None]
    return torch.bitwise_left_shift(words, bits).bitwise_and_(-(2**31)).flatten()


@functools.cache
def _factors(device: torch.device) -> torch.Tensor:
    """Random numbers of 64 bits (period,), each of two hashes that no period has."""
    high, low = hashed(-2 * _PERIOD, 2 * _PERIOD, device).to(torch.int64).view(2, -1)
    return torch.bitwise_left_shift(high, _BITS).bitwise_xor_(low)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Numbers of *tensor* (n,): a complex one has two for each element."""
    flat = tensor.detach().resolve_conj().reshape(-1).contiguous()
    return torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat


def _split(flat: torch.Tensor) -> tuple[torch.Tensor, ...]:
    size = _ON_CPU if flat.device.type == "cpu" else _ELSEWHERE
    # most tensors of most models are small, and to cut them takes as long as to add them up
    return (flat,) if flat.numel() <= size else flat.split(size)
