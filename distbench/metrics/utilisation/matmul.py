"""Measure matrix multiplication: precision and best rate."""

from __future__ import annotations

import os
import time
from typing import Any

import torch

from distbench.core.dtypes import TORCH_DTYPE_NAMES
from distbench.metrics.base import NotAvailable

_PRECISION_NAMES = {"tf32": "high", "bf16": "medium"}
_SIZES = {"cuda": 8192, "cpu": 2048}
# per try on a GPU: launches and synchronisation are then a small part of the time
_IN_A_ROW = 8
_TRIES = 5


def set_fp32_precision(precision: str) -> None:
    """Set the precision of fp32 matrix products, convolutions and RNNs: highest or high."""
    torch.set_float32_matmul_precision(precision)
    # cuDNN's default is TF32; after a setting of each kind by itself, torch's cudnn.flags would raise
    torch.backends.cudnn.allow_tf32 = precision != "highest"


def fp32_precision(device: torch.device) -> str:
    """Precision of fp32 matrix products on *device* now: highest, high (TF32) or medium (bf16).

    Read from the backend: torch.get_float32_matmul_precision raises once it was set through the backend.
    """
    if device.type == "cuda":
        return _cuda_precision(torch.backends.cuda.matmul.fp32_precision)
    return _PRECISION_NAMES.get(torch.backends.mkldnn.matmul.fp32_precision, "highest")  # type: ignore[attr-defined]


def cudnn_precisions() -> dict[str, str]:
    """Precision of fp32 convolutions and RNNs on GPUs now, as facts of a record."""
    cudnn: Any = torch.backends.cudnn
    return {
        "convolution_precision": _cuda_precision(cudnn.conv.fp32_precision),
        "rnn_precision": _cuda_precision(cudnn.rnn.fp32_precision),
    }


def _cuda_precision(setting: str) -> str:
    # NVIDIA's libraries obey this variable, whatever the program sets
    is_off = os.environ.get("NVIDIA_TF32_OVERRIDE") == "0"
    return "highest" if is_off else _PRECISION_NAMES.get(setting, "highest")


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
