"""Published peaks of GPUs, without sparsity; figures with sparsity are halved here."""

from __future__ import annotations

import re
from dataclasses import dataclass

_TERA = 1e12


@dataclass(frozen=True)
class Peak:
    """FLOP/s of one device by the dtype of the matrices; None: the source has no figure.

    Tensor cores accumulate in fp32, as in torch: on GeForce that is half as fast as accumulation in fp16.
    The fp64 figure is that of tensor cores if the GPU has them for fp64, as cuBLAS uses them.
    """

    source: str
    bf16: float | None
    fp16: float
    tf32: float | None
    fp32: float
    fp64: float | None
    float8: float | None = None
    """Of products in float8, accumulated in fp32."""

    def for_dtype(self, compute: str, *, tf32: bool) -> float | None:
        """Peak for matrices of dtype *compute*; *tf32*: True if fp32 may run as TF32.

        Cores without TF32 multiply in fp32 even if it is allowed.
        """
        by_name = {"bf16": self.bf16, "fp16": self.fp16, "fp32": self.fp32, "fp64": self.fp64}
        return self.tf32 if compute == "fp32" and tf32 and self.tf32 else by_name[compute]


def _ampere(
    source: str,
    half: float,
    tf32: float | None,
    fp32: float,
    fp64: float | None = None,
    float8: float | None = None,
) -> Peak:
    """Peak of an Ampere or later GPU, where bf16 is as fast as fp16; figures in TFLOP/s."""
    of_half = half * _TERA
    return Peak(source, of_half, of_half, _flops(tf32), fp32 * _TERA, _flops(fp64), _flops(float8))


def _older(source: str, fp16: float, fp32: float, fp64: float | None = None) -> Peak:
    """Peak of a Volta or Turing GPU, whose tensor cores support only fp16; figures in TFLOP/s."""
    return Peak(source, None, fp16 * _TERA, None, fp32 * _TERA, _flops(fp64))


def _flops(teraflops: float | None) -> float | None:
    return None if teraflops is None else teraflops * _TERA


_V100, _H100, _H200 = "NVIDIA V100 datasheet", "NVIDIA H100 datasheet", "NVIDIA H200 datasheet"
_GA102, _ADA = "NVIDIA Ampere GA102 whitepaper", "NVIDIA Ada GPU architecture whitepaper"
_CDNA = "AMD Instinct"

# the full name as the driver reports it: a slice of a GPU (MIG) has a different name, and no known peak
_PEAKS = {
    r"Tesla V100-SXM2-\d+GB": _older(f"{_V100}, SXM2", 125, 15.7, 7.8),
    r"Tesla V100-PCIE-\d+GB": _older(f"{_V100}, PCIe", 112, 14, 7),
    r"Tesla V100S-PCIE-32GB": _older(f"{_V100}, V100S", 130, 16.4, 8.2),
    r"Tesla T4": _older("NVIDIA T4 datasheet", 65, 8.1),
    r"NVIDIA A100-(SXM4|PCIE)-\d+GB|NVIDIA A100 80GB PCIe": _ampere(
        "NVIDIA A100 datasheet", 312, 156, 19.5, 19.5
    ),
    r"NVIDIA A30": _ampere("NVIDIA A30 datasheet", 165, 82, 10.3, 10.3),
    r"NVIDIA A10": _ampere("NVIDIA A10 datasheet", 125, 62.5, 31.2),
    r"NVIDIA A40": _ampere("NVIDIA A40 datasheet", 149.7, 74.8, 37.4),
    r"NVIDIA RTX A6000": _ampere(f"{_GA102}, RTX A6000", 154.8, 77.4, 38.7),
    r"NVIDIA GeForce RTX 3090": _ampere(f"{_GA102}, RTX 3090", 71, 35.6, 35.6),
    r"NVIDIA L4": _ampere("NVIDIA L4 datasheet", 121, 60, 30.3, float8=242),
    r"NVIDIA L40": _ampere("NVIDIA L40 datasheet", 181.05, 90.5, 90.5, float8=362),
    r"NVIDIA L40S": _ampere("NVIDIA L40S datasheet", 362, 183, 91.6, float8=733),
    r"NVIDIA GeForce RTX 4090": _ampere(f"{_ADA}, RTX 4090", 165.2, 82.6, 82.6, float8=330.3),
    r"NVIDIA H100 80GB HBM3|NVIDIA H100": _ampere(f"{_H100}, SXM", 989.5, 494.7, 67, 67, 1979),
    r"NVIDIA H100 PCIe": _ampere(f"{_H100}, PCIe", 756, 378, 51, 51, 1513),
    r"NVIDIA H100 NVL": _ampere(f"{_H100}, NVL", 835.5, 417.5, 60, 60, 1671),
    r"NVIDIA H200": _ampere(f"{_H200}, SXM", 989.5, 494.7, 67, 67, 1979),
    r"NVIDIA H200 NVL": _ampere(f"{_H200}, NVL", 835.5, 417.5, 60, 60, 1671),
    r"NVIDIA GH200 (120GB|480GB|144G HBM3e)": _ampere("NVIDIA GH200 datasheet", 989.5, 494.7, 67, 67, 1979),
    r"NVIDIA B200": _ampere("NVIDIA Blackwell datasheet, HGX B200", 2250, 1100, 75, 37, 4500),
    r"NVIDIA GB200": _ampere("NVIDIA GB200 datasheet, half of a superchip", 2500, 1250, 80, 40, 5000),
    r"NVIDIA GB300": _ampere("NVIDIA GB300 NVL72 datasheet, a 72nd", 2500, 1250, 80, 1.3, 5000),
    r"NVIDIA GeForce RTX 5090": _ampere(
        "NVIDIA RTX Blackwell GPU architecture whitepaper, RTX 5090", 209.5, 104.8, 104.8, float8=419
    ),
    r"AMD Instinct MI250X": _ampere(f"{_CDNA} MI250X datasheet, half of a module", 191.5, None, 47.9, 47.9),
    r"AMD Instinct MI300X": _ampere(f"{_CDNA} MI300X datasheet", 1307.4, 653.7, 163.4, 163.4, 2614.9),
    r"AMD Instinct MI325X": _ampere(f"{_CDNA} MI325X datasheet", 1307.4, 653.7, 163.4, 163.4, 2614.9),
    r"AMD Instinct MI355X": _ampere(f"{_CDNA} MI355X datasheet", 2516.6, None, 157.3, 78.6, 5033.2),
}


def published_peak(gpu: str) -> Peak | None:
    """Published peak of the GPU named *gpu*, or None if none is known."""
    return next((peak for pattern, peak in _PEAKS.items() if re.fullmatch(pattern, gpu)), None)
