"""``utilisation``: how much of what the devices could compute the model gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from distbench.core.columns import columns_of
from distbench.metrics.base import Metric, NotAvailable, PassContext, TrialData, Values, value_or_reason
from distbench.system.gpu_peaks import published_peak

_MODEL_FLOPS_DOC = (
    "model FLOPs: those of forward and backward (flops_per_sample; PaLM, arXiv 2204.02311, appendix B: no "
    "recomputation, no causal discount)"
)


# like torchtitan since its pull request 2451 (February 2026)
_NO_PEAK = NotAvailable(
    "no single peak applies with float8, because a step multiplies in two dtypes with different peaks; "
    "compare model_flops_per_s_per_device"
)
_NOT_REQUESTED = "metrics.utilisation.measure_peak = false"


@dataclass(frozen=True)
class Utilisation(Metric):
    """Model and hardware FLOPs utilisation, against a published peak or one measured by a matmul."""

    passes = frozenset({"count"})
    columns = (
        *columns_of("FLOP/s", "higher", "first")(
            model_flops_per_s_per_device=f"FLOP/s of a device over the timed window; {_MODEL_FLOPS_DOC}.",
        ),
        *columns_of("", "higher", "first")(
            mfu="Model FLOPs utilisation: model FLOPs per second over the published dense peak of the "
            f"devices in the dtype of the computation (peak_flops); {_MODEL_FLOPS_DOC}.",
            hfu="Hardware FLOPs utilisation: as mfu, plus what activation_checkpointing computes again "
            "(recomputed_flops_per_sample). full: the forward pass of the layers; head and embedding "
            "are not included, so it is less than llm-foundry's 4/3 of the model FLOPs. selective "
            "keeps the matrix products and attention of a transformer, so it computes none of its "
            "FLOPs again.",
        ),
        *columns_of("FLOP/s", None, "first")(
            peak_flops="Published dense peak of one device in the dtype of the computation; the record's "
            "environment names the GPU, and tables.peak the source.",
        ),
        *columns_of("FLOP/s", None, "min")(
            matmul_flops="Best rate of a square matmul in the dtype of the computation, measured on all "
            "ranks at once after the timed steps (on a GPU with its own clock, over several in a row): "
            "an achievable peak, not a published one.",
        ),
        *columns_of("B/s", None, "min")(
            copy_bytes_per_s="Best rate of a copy in the memory of the device, bytes read and written "
            "together, measured on all ranks at once after the timed steps: an achievable bandwidth.",
        ),
        *columns_of("", "higher", "first")(
            mamfu=f"Model FLOPs per second over matmul_flops; {_MODEL_FLOPS_DOC}. Not comparable with mfu.",
        ),
    )

    measure_peak: bool = False
    """Measure the best rates of a matmul and of a copy in each trial, after its timed steps; takes about two
    seconds."""
    matmul_size: int | None = None
    """Rows and columns of the matrices of that matmul; null: 8192 on a GPU, 2048 on a CPU."""

    def values(self, context: PassContext, state: Any) -> Values:
        if context.rank == 0 and (peak := published_peak(_gpu(context))):
            context.tables["peak"] = [{"gpu": _gpu(context), "source": peak.source}]
        copy: float | NotAvailable = NotAvailable(_NOT_REQUESTED)
        if self.measure_peak:
            copy = _copy_rate(context)
        if context.case.precision.float8 != "none":
            return {"peak_flops": _NO_PEAK, "matmul_flops": _NO_PEAK, "copy_bytes_per_s": copy}
        matmul: float | NotAvailable = NotAvailable(_NOT_REQUESTED)
        if self.measure_peak:
            matmul = _matmul_rate(self.matmul_size, context)
        return {"peak_flops": _published_peak(context), "matmul_flops": matmul, "copy_bytes_per_s": copy}

    def summary(self, trial: TrialData) -> dict[str, float | NotAvailable]:
        flops = trial.flops_per_sample
        if flops is None:
            raise NotAvailable(trial.absent.get("flops_per_sample", "flops_per_sample is unknown"))
        samples = trial.case.batch.global_batch_size / trial.slowest_mean("step_s")
        rate = samples * flops / trial.case.world_size
        peak, matmul = _min_over_ranks(trial, "peak_flops"), _min_over_ranks(trial, "matmul_flops")
        in_float8 = trial.case.precision.float8 != "none"
        mfu = rate / peak if peak else _NO_PEAK if in_float8 else NotAvailable("peak_flops is unknown")
        return {
            "model_flops_per_s_per_device": rate,
            "mfu": mfu,
            "hfu": _with_recomputation(mfu, flops, trial),
            "mamfu": rate / matmul if matmul else NotAvailable("matmul_flops was not measured"),
        }


def _with_recomputation(mfu: float | NotAvailable, flops: int, trial: TrialData) -> float | NotAvailable:
    """*mfu*, which counts *flops* per sample, plus what activation checkpointing computes again."""
    if isinstance(mfu, NotAvailable) or trial.case.activation_checkpointing == "none":
        return mfu
    again = trial.recomputed_flops_per_sample
    if again is None:
        why = "recomputed_flops_per_sample is unknown"
        return NotAvailable(trial.absent.get("recomputed_flops_per_sample", why))
    return mfu * (1 + again / flops)


def _published_peak(context: PassContext) -> float | NotAvailable:
    gpu = _gpu(context)
    if not gpu:
        return NotAvailable("no published peak for CPUs")
    peak = published_peak(gpu)
    if peak is None:
        return NotAvailable(f"no published peak for {gpu}; set utilisation.measure_peak to measure one")
    from distbench.metrics.utilisation.matmul import fp32_precision

    compute = context.case.precision.compute
    flops = peak.for_dtype(compute, tf32=fp32_precision(context.device) == "high")
    return NotAvailable(f"{peak.source} gives no peak of {gpu} in {compute}") if flops is None else flops


def _matmul_rate(size: int | None, context: PassContext) -> float | NotAvailable:
    from distbench.metrics.utilisation.matmul import best_matmul_rate

    return value_or_reason(lambda: best_matmul_rate(size, context.case.precision.compute, context.device))


def _copy_rate(context: PassContext) -> float | NotAvailable:
    from distbench.metrics.utilisation.copy import best_copy_rate

    return value_or_reason(lambda: best_copy_rate(context.device))


def _gpu(context: PassContext) -> str:
    if context.device.type != "cuda":
        return ""
    import torch

    return torch.cuda.get_device_name(context.device)


def _min_over_ranks(trial: TrialData, column: str) -> float | None:
    """Smallest value over ranks: the slowest device limits the others."""
    known = [value for rank in trial.samples.get(column, []) for value in rank if value]
    return min(known, default=None)
