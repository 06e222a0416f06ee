"""Tables of the work in traces: operators, modules, kernels and matrix products."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from distbench.analysis.traces.job_trace import JobTrace
from distbench.analysis.traces.rank_trace import RankTrace
from distbench.analysis.traces.work_times import WorkTime
from distbench.core.units import format_number, format_percent
from distbench.report.trace_fields import RANK, name_field, seconds_field
from distbench.system.gpu_peaks import published_peak
from distbench.tables.table import Field, Table, TableCell, TableRow

_TERA = 1e12


def operators_table(job: JobTrace) -> Table:
    """Operators by their time on the device."""
    doc = "Operation of the host that launched the kernels."
    return _work_table(job, "Operators", "operator", doc, lambda rank: rank.operators)


def kernels_table(job: JobTrace) -> Table:
    """Kernels by their time; none of ranks without a device."""
    return _work_table(job, "Kernels", "kernel", "Name of the kernel.", lambda rank: rank.kernels)


def modules_table(job: JobTrace) -> Table:
    """Modules by the time of what they launch."""
    doc = "Module whose forward or backward pass launched it."
    return _work_table(job, "Modules", "module", doc, lambda rank: rank.modules)


def _work_table(
    job: JobTrace, title: str, column: str, doc: str, times_of: Callable[[RankTrace], list[WorkTime]]
) -> Table:
    """Table of the times that *times_of* gives of each rank."""
    fields = (
        name_field(column, column, doc),
        RANK,
        Field("calls", "calls", "Number in the steps.", type="bigint"),
        seconds_field("seconds", "ms", "Time in a step, each for itself; mean over the steps."),
        seconds_field("mean_s", "", "Time of one, mean."),
        Field("share", "share", "Part of the time of all, from 0 to 1.", format=format_percent),
    )
    rows = [TableRow(cells) for rank in job.ranks for cells in _work_cells(rank, column, times_of(rank))]
    rows.sort(key=lambda row: -float(row.value("seconds") or 0))
    caption = "ms: time in a step, where each counts in full even if several run at once."
    return Table(title, caption, fields, tuple(rows))


def _work_cells(
    rank: RankTrace, column: str, times: list[WorkTime]
) -> Iterator[dict[str, str | float | None]]:
    whole = math.fsum(each.seconds for each in times)
    for each in times:
        yield {
            column: each.name,
            "rank": rank.rank,
            "calls": each.calls,
            "seconds": each.seconds / len(rank.steps),
            "mean_s": each.seconds / each.calls,
            "share": each.seconds / whole if whole else None,
        }


def matmuls_table(job: JobTrace) -> Table:
    """Matrix products by shape."""
    fields = (
        Field("shape", "m x n x k", "Rows, columns and inner dimension; batches in front.", type="varchar"),
        *(Field(name, "", "Dimension of the product.", type="bigint") for name in ("batch", "m", "n", "k")),
        Field("dtype", "dtype", "Dtype of the factors.", type="varchar"),
        RANK,
        Field("calls", "calls", "Number in the trace.", type="bigint"),
        seconds_field("seconds", "ms", "Time of all calls in the trace."),
        Field("flops_per_s", "TFLOP/s", "FLOPs over time.", "FLOP/s", "higher", format=_tera),
        Field("intensity", "FLOP/B", "FLOPs per byte of factors and result.", format=format_number),
        Field("peak_share", "of peak", "Part of the published peak of the device.", format=format_percent),
    )
    rows = [TableRow(cells) for rank in job.ranks for cells in _matmul_cells(rank)]
    rows.sort(key=lambda row: -float(row.value("seconds") or 0))
    caption = "Products whose shapes are in the trace. FLOP/B: FLOPs per byte, each matrix counted once."
    return Table("Matrix products", caption, fields, tuple(rows))


def _tera(number: float) -> str:
    return format_number(number / _TERA)


def _matmul_cells(rank: RankTrace) -> Iterator[dict[str, TableCell | str | float | None]]:
    peak = published_peak(rank.device)
    for times in rank.matmuls:
        shape = times.shape
        batch = f"{shape.batch} x " if shape.batch > 1 else ""
        share: TableCell | float = TableCell(
            None, reason=f"no published peak of {rank.device or 'the device'}"
        )
        if shape.dtype == "fp32":
            share = TableCell(None, reason="the trace does not say whether fp32 ran as TF32")
        elif peak and shape.dtype in ("bf16", "fp16", "fp64"):
            flops = peak.for_dtype(shape.dtype, tf32=False)
            share = times.flops_per_second / flops if flops else share
        yield {
            "shape": f"{batch}{shape.m} x {shape.n} x {shape.k}",
            "batch": shape.batch,
            "m": shape.m,
            "n": shape.n,
            "k": shape.k,
            "dtype": shape.dtype,
            "rank": rank.rank,
            "calls": times.calls,
            "seconds": times.seconds,
            "flops_per_s": times.flops_per_second,
            "intensity": times.flops_per_byte,
            "peak_share": share,
        }
