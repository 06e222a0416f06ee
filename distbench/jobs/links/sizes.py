"""Message sizes of a suite, like nccl-tests' ``-b``, ``-e`` and ``-f``. Without torch."""

from __future__ import annotations

from collections.abc import Sequence

from distbench.core.case import Device
from distbench.core.units import parse_bytes

AUTO_SIZES: dict[Device, str] = {"cpu": "1KiB..16MiB", "cuda": "1KiB..256MiB"}
"""Range of ``sizes: auto``: up to where the bandwidth of usual links stops growing."""
_MAX_BYTES = 1 << 40


def message_sizes(asked: str | Sequence[str | int], factor: int, device: Device) -> tuple[int, ...]:
    """Message sizes in bytes, without duplicates, in ascending order.

    Args:
        asked: ``auto``, a range ``8KiB..64MiB`` in which each size is *factor* times the one before, or a
            list of sizes.

    Raises:
        ValueError: it is none of these.
    """
    if not isinstance(asked, str):
        if not asked:
            raise ValueError("empty; list at least one size")
        return tuple(sorted({_bytes(size) for size in asked}))
    text = AUTO_SIZES[device] if asked == "auto" else asked
    low, dots, high = text.partition("..")
    if not dots:
        return (_bytes(text),)
    size, most = _bytes(low), _bytes(high)
    if size > most:
        raise ValueError("the first size of a range must be at most the last")
    sizes = []
    while size <= most:
        sizes.append(size)
        size *= factor
    return tuple(sizes)


def _bytes(size: str | int) -> int:
    number = size if isinstance(size, int) else int(size) if size.strip().isdecimal() else parse_bytes(size)
    if isinstance(number, bool) or not 1 <= number <= _MAX_BYTES:
        raise ValueError("a size must be from 1 byte to 1 TiB")
    return int(number)
