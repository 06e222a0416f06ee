"""Measure the memory bandwidth of a device by copies."""

from __future__ import annotations

import time

import torch

from distbench.metrics.base import NotAvailable

_BYTES = {"cuda": 2**30, "cpu": 2**27}
"""Bytes to copy: far more than the caches of a device hold."""
_TRIES = 5


def best_copy_rate(device: torch.device) -> float:
    """Best bytes per second, read and written together, of several copies on *device*.

    Raises:
        NotAvailable: the buffers don't fit beside the model.
    """
    size = _BYTES[device.type]
    try:
        source, target = (torch.ones(size // 4, device=device) for _ in range(2))
        seconds = min([_seconds(source, target) for _ in range(1 + _TRIES)][1:])
    except torch.OutOfMemoryError as error:
        raise NotAvailable(
            f"two buffers of {size} bytes do not fit in memory next to the training"
        ) from error
    return 2 * size / seconds


def _seconds(source: torch.Tensor, target: torch.Tensor) -> float:
    """Seconds of one copy, by the device's own clock on a GPU."""
    if source.device.type != "cuda":
        began = time.perf_counter()
        target.copy_(source)
        return time.perf_counter() - began
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    target.copy_(source)
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) / 1000
