"""Counter-based hashes, the same on every device and for every sharding."""

import torch

# the constants of MurmurHash3's finaliser (Appleby, public domain), as signed numbers
_FIRST, _SECOND = 0x85EBCA6B - 2**32, 0xC2B2AE35 - 2**32


def hash_counters(first: int, count: int, device: torch.device) -> torch.Tensor:
    """Hashes (count,), int32, of the lowest 32 bits of the counters from *first* on."""
    first = (first + 2**31) % 2**32 - 2**31
    words = torch.arange(first, first + count, device=device).to(torch.int32)
    _xor_shift(words, 16)
    words.mul_(_FIRST)
    _xor_shift(words, 13)
    words.mul_(_SECOND)
    _xor_shift(words, 16)
    return words


def _xor_shift(words: torch.Tensor, bits: int) -> None:
    """``words ^= words >> bits``, shifting zeros in."""
    words.bitwise_xor_(words.bitwise_right_shift(bits).bitwise_and_(2 ** (32 - bits) - 1))
