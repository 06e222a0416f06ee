"""``utilisation``: how much of what the devices could compute the model gets."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distbench.case import TORCH_NAMES
from distbench.metrics.base import Absent, Metric, Session, Trial, Values, alike

if TYPE_CHECKING:
    import torch


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
        """Peak for matrices of dtype *compute*; *tf32*: whether fp32 may run as TF32."""
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
    """Published peak of the GPU of this name, or None if none is known."""
    return next((peak for pattern, peak in _PEAKS.items() if re.fullmatch(pattern, gpu)), None)


_MODEL = (
    "model FLOPs: forward and backward by the workload's formula (PaLM, arXiv 2204.02311, appendix B: no "
    "recomputation, no causal discount)"
)


@dataclass(frozen=True)
class Utilisation(Metric):
    """Model and hardware FLOPs utilisation, against a published peak or one measured by a matmul."""

    passes = frozenset({"count"})
    columns = (
        *alike("FLOP/s", "higher", "first")(
            model_flops_per_s_per_device=f"FLOP/s of a device over the timed window; {_MODEL}.",
        ),
        *alike("", "higher", "first")(
            mfu=f"Model FLOPs utilisation: {_MODEL}, a second, over the devices' published dense peak in the "
            "dtype of the computation (peak_flops).",
            hfu="Hardware FLOPs utilisation: as mfu, plus what activation_checkpointing: full computes "
            "again: the forward pass of the layers, by the workload's formula; head and embedding are not "
            "among them, so it is less than llm-foundry's 4/3 of the model FLOPs. selective keeps every "
            "matrix product and attention, so it computes no model FLOP again.",
        ),
        *alike("FLOP/s", None, "first")(
            peak_flops="Published dense peak of one device in the dtype of the computation; the record's "
            "environment names the GPU, and tables.peak the source.",
        ),
        *alike("FLOP/s", None, "min")(
            matmul_flops="Best rate of a square matmul in the dtype of the computation, measured on every "
            "rank at once after the timed steps: an achievable peak, not a published one.",
        ),
        *alike("", "higher", "first")(
            mamfu=f"Model FLOPs a second over matmul_flops: {_MODEL}. Not comparable with mfu.",
        ),
    )

    measure_peak: bool = False
    """Measure the best rate of a matmul in each trial, after its timed steps; takes about a second."""
    matmul_size: int = 2048
    """Rows and columns of the matrices of that matmul."""

    def values(self, session: Session, state: Any) -> Values:
        if session.rank == 0 and (peak := published(_gpu(session))):
            session.tables["peak"] = [{"gpu": _gpu(session), "source": peak.source}]
        matmul: float | Absent = Absent("metrics.utilisation.measure_peak = false")
        if self.measure_peak:
            matmul = _matmul_rate(self.matmul_size, session.case.precision.compute, session.device)
        return {"peak_flops": _published(session), "matmul_flops": matmul}

    def summary(self, trial: Trial) -> dict[str, float | Absent]:
        flops = trial.flops_per_sample
        if flops is None:
            raise Absent(f"workload {trial.case.workload.name} has no FLOP formula")
        samples = trial.case.batch.global_batch_size / trial.slowest_mean("step_s")
        rate = samples * flops / trial.case.world_size
        peak, matmul = _smallest(trial, "peak_flops"), _smallest(trial, "matmul_flops")
        mfu = rate / peak if peak else Absent("peak_flops is unknown")
        return {
            "model_flops_per_s_per_device": rate,
            "mfu": mfu,
            "hfu": _with_recomputation(mfu, flops, trial),
            "mamfu": rate / matmul if matmul else Absent("matmul_flops was not measured"),
        }


def _with_recomputation(mfu: float | Absent, flops: int, trial: Trial) -> float | Absent:
    """*mfu*, which counts *flops* per sample, with what activation checkpointing computes again."""
    if isinstance(mfu, Absent) or trial.case.activation_checkpointing != "full":
        return mfu
    again = trial.recomputed_flops_per_sample
    if again is None:
        return Absent(f"workload {trial.case.workload.name} does not say what its layers compute again")
    return mfu * (1 + again / flops)


def _published(session: Session) -> float | Absent:
    gpu = _gpu(session)
    if not gpu:
        return Absent("no published peak for CPUs")
    peak = published(gpu)
    if peak is None:
        return Absent(f"no published peak is known for {gpu}; set utilisation.measure_peak to measure one")
    import torch

    return peak.of(session.case.precision.compute, tf32=torch.backends.cuda.matmul.allow_tf32)


def _gpu(session: Session) -> str:
    if session.device.type != "cuda":
        return ""
    import torch

    return torch.cuda.get_device_name(session.device)


def _matmul_rate(size: int, compute: str, device: torch.device) -> float:
    """Best FLOP/s of several matmuls of *size*; device-synchronised around each."""
    import torch

    dtype = getattr(torch, TORCH_NAMES[compute])
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    seconds = []
    for _ in range(6):
        if device.type == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        torch.mm(a, b)
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return 2 * size**3 / min(seconds[1:])


def _smallest(trial: Trial, column: str) -> float | None:
    """Smallest value over ranks: the slowest device bounds the others."""
    known = [value for rank in trial.samples.get(column, []) for value in rank if value]
    return min(known, default=None)
