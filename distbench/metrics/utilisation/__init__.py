"""``utilisation``: how much of what the devices could compute the model gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from distbench.core.columns import alike
from distbench.metrics.base import Absent, Metric, Session, Trial, Values, or_absent
from distbench.metrics.utilisation.peaks import published

_MODEL = (
    "model FLOPs: those of forward and backward (flops_per_sample; PaLM, arXiv 2204.02311, appendix B: no "
    "recomputation, no causal discount)"
)


# as torchtitan since its pull request 2451 (February 2026)
_NO_PEAK = Absent(
    "with float8 a step multiplies in two dtypes, each with a peak of its own; compare "
    "model_flops_per_s_per_device"
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
            hfu="Hardware FLOPs utilisation: as mfu, plus what activation_checkpointing computes again "
            "(recomputed_flops_per_sample). full: the forward pass of the layers; head and embedding are not "
            "among them, so it is less than llm-foundry's 4/3 of the model FLOPs. selective keeps the matrix "
            "products and attention of a transformer, so it computes none of its FLOPs again.",
        ),
        *alike("FLOP/s", None, "first")(
            peak_flops="Published dense peak of one device in the dtype of the computation; the record's "
            "environment names the GPU, and tables.peak the source.",
        ),
        *alike("FLOP/s", None, "min")(
            matmul_flops="Best rate of a square matmul in the dtype of the computation, measured on every "
            "rank at once after the timed steps, on a GPU by its own clock over several in a row: an "
            "achievable peak, not a published one.",
        ),
        *alike("", "higher", "first")(
            mamfu=f"Model FLOPs a second over matmul_flops: {_MODEL}. Not comparable with mfu.",
        ),
    )

    measure_peak: bool = False
    """Measure the best rate of a matmul in each trial, after its timed steps; takes about a second."""
    matmul_size: int | None = None
    """Rows and columns of the matrices of that matmul; null: 8192 on a GPU, 2048 on a CPU."""

    def values(self, session: Session, state: Any) -> Values:
        if session.rank == 0 and (peak := published(_gpu(session))):
            session.tables["peak"] = [{"gpu": _gpu(session), "source": peak.source}]
        if session.case.precision.float8 != "none":
            return {"peak_flops": _NO_PEAK, "matmul_flops": _NO_PEAK}
        matmul: float | Absent = Absent("metrics.utilisation.measure_peak = false")
        if self.measure_peak:
            matmul = _matmul(self.matmul_size, session)
        return {"peak_flops": _published(session), "matmul_flops": matmul}

    def summary(self, trial: Trial) -> dict[str, float | Absent]:
        flops = trial.flops_per_sample
        if flops is None:
            raise Absent(trial.absent.get("flops_per_sample", "flops_per_sample is unknown"))
        samples = trial.case.batch.global_batch_size / trial.slowest_mean("step_s")
        rate = samples * flops / trial.case.world_size
        peak, matmul = _smallest(trial, "peak_flops"), _smallest(trial, "matmul_flops")
        in_float8 = trial.case.precision.float8 != "none"
        mfu = rate / peak if peak else _NO_PEAK if in_float8 else Absent("peak_flops is unknown")
        return {
            "model_flops_per_s_per_device": rate,
            "mfu": mfu,
            "hfu": _with_recomputation(mfu, flops, trial),
            "mamfu": rate / matmul if matmul else Absent("matmul_flops was not measured"),
        }


def _with_recomputation(mfu: float | Absent, flops: int, trial: Trial) -> float | Absent:
    """*mfu*, which counts *flops* per sample, with what activation checkpointing computes again."""
    if isinstance(mfu, Absent) or trial.case.activation_checkpointing == "none":
        return mfu
    again = trial.recomputed_flops_per_sample
    if again is None:
        why = "recomputed_flops_per_sample is unknown"
        return Absent(trial.absent.get("recomputed_flops_per_sample", why))
    return mfu * (1 + again / flops)


def _published(session: Session) -> float | Absent:
    gpu = _gpu(session)
    if not gpu:
        return Absent("no published peak for CPUs")
    peak = published(gpu)
    if peak is None:
        return Absent(f"no published peak is known for {gpu}; set utilisation.measure_peak to measure one")
    from distbench.metrics.utilisation.matmul import fp32_precision

    compute = session.case.precision.compute
    flops = peak.of(compute, tf32=fp32_precision(session.device) == "high")
    return Absent(f"{peak.source} has no peak of {gpu} in {compute}") if flops is None else flops


def _matmul(size: int | None, session: Session) -> float | Absent:
    from distbench.metrics.utilisation.matmul import best_rate

    return or_absent(lambda: best_rate(size, session.case.precision.compute, session.device))


def _gpu(session: Session) -> str:
    if session.device.type != "cuda":
        return ""
    import torch

    return torch.cuda.get_device_name(session.device)


def _smallest(trial: Trial, column: str) -> float | None:
    """Smallest value over ranks: the slowest device bounds the others."""
    known = [value for rank in trial.samples.get(column, []) for value in rank if value]
    return min(known, default=None)
