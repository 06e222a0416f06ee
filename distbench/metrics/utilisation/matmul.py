"""Measure matrix multiplication: precision and best rate."""

from __future__ import annotations

import os
import time

import torch

from distbench.core.case import TORCH_DTYPE_NAMES
from distbench.metrics.base import NotAvailable

_PRECISION_NAMES = {"tf32": "high", "bf16": "medium"}
_SIZES = {"cuda": 8192, "cpu": 2048}
# per try on a GPU: launches and synchronisation are then a small part of the time
_IN_A_ROW = 8
_TRIES = 5


def fp32_precision(device: torch.device) -> str:
    """Precision of fp32 matrix products on *device* now: highest, high (TF32) or medium (bf16).

    Read from the backend: torch.get_float32_matmul_precision raises once it was set through the backend.
    """
    if device.type == "cuda":
        # NVIDIA's libraries obey this variable, whatever the program sets
        is_off = os.environ.get("NVIDIA_TF32_OVERRIDE") == "0"
        told = "ieee" if is_off else torch.backends.cuda.matmul.fp32_precision
    else:
        told = torch.backends.mkldnn.matmul.fp32_precision  # type: ignore[attr-defined]
    return _PRECISION_NAMES.get(told, "highest")


def best_matmul_rate(size: int | None, compute: str, device: torch.device) -> float:
    """Best FLOP/s of square matmuls of *size* in dtype *compute* on *device*, of several tries.

    Args:
        size: Rows and columns; None: enough to keep the device busy.

    Raises:
        NotAvailable: the matrices don't fit beside the model.
    """
    size = size or _SIZES[device.type]
    dtype = getattr(torch, TORCH_DTYPE_NAMES[compute])
    try:
        a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        seconds = [_seconds(a, b) for _ in range(1 + _TRIES)][1:]
    except torch.OutOfMemoryError as error:
        raise NotAvailable(
            f"matrices of {size} x {size} do not fit in memory next to the training"
        ) from error
    return float(2 * size**3 / min(seconds))


def _seconds(a: torch.Tensor, b: torch.Tensor) -> float:
    """Seconds of one product, by the device's own clock on a GPU."""
    if a.device.type != "cuda":
        began = time.perf_counter()
        torch.mm(a, b)
        return time.perf_counter() - began
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    out = torch.mm(a, b)
    first.record()
    for _ in range(_IN_A_ROW):
        torch.mm(a, b, out=out)
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) / 1000 / _IN_A_ROW
