"""Published dense peaks of GPUs, for model FLOPs utilisation. An unknown GPU has none: nothing is guessed."""

from __future__ import annotations

import re
from dataclasses import dataclass

_H100 = "NVIDIA H100 datasheet (half of the figures given with sparsity)"
_H200 = "NVIDIA H200 datasheet (half of the figures given with sparsity)"


@dataclass(frozen=True)
class Peak:
    """FLOP/s of one device without sparsity, by what multiplies matrices."""

    source: str
    half: float
    """bf16 and fp16 on tensor cores."""
    tf32: float
    fp32: float

    def of(self, compute: str, *, tf32: bool) -> float:
        """Return the peak for matrices of dtype *compute*; *tf32*: whether fp32 may run as TF32."""
        if compute in ("bf16", "fp16"):
            return self.half
        return self.tf32 if tf32 else self.fp32


# the whole name as the driver gives it: a slice of a GPU (MIG) has another name, and no known peak
_PEAKS = {
    r"NVIDIA A100-(SXM4|PCIE)-\d+GB|NVIDIA A100 80GB PCIe": Peak(
        "NVIDIA A100 datasheet", 312e12, 156e12, 19.5e12
    ),
    r"NVIDIA H100 80GB HBM3|NVIDIA H100": Peak(_H100 + ", SXM", 989.5e12, 494.7e12, 67e12),
    r"NVIDIA H100 PCIe": Peak(_H100 + ", PCIe", 756e12, 378e12, 51e12),
    r"NVIDIA H100 NVL": Peak(_H100 + ", NVL", 835.5e12, 417.5e12, 60e12),
    r"NVIDIA H200": Peak(_H200 + ", SXM", 989.5e12, 494.7e12, 67e12),
    r"NVIDIA H200 NVL": Peak(_H200 + ", NVL", 835.5e12, 417.5e12, 60e12),
    r"NVIDIA L40S": Peak("NVIDIA L40S datasheet", 362e12, 183e12, 91.6e12),
}


def published(gpu: str) -> Peak | None:
    """Return the published peak of the GPU of this name, or None if none is known here."""
    return next((peak for pattern, peak in _PEAKS.items() if re.fullmatch(pattern, gpu)), None)
