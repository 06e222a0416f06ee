"""Tables of the analysed traces of a job."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

from distbench.analysis.traces.breakdown import RECOMPUTED, idle_key
from distbench.analysis.traces.collectives import TraceCollective
from distbench.analysis.traces.differences import CauseChange, cause_changes
from distbench.analysis.traces.idle_causes import IDLE_CAUSE_DOCS
from distbench.analysis.traces.job_trace import JobTrace
from distbench.analysis.traces.launches import LaunchTimes
from distbench.analysis.traces.rank_trace import RankTrace
from distbench.core.grouping import group_by
from distbench.core.units import format_gb_per_s, format_number, format_percent
from distbench.metrics.communication.traffic import bus_factor
from distbench.report.trace_fields import (
    RANK,
    SHARE,
    format_ms,
    name_field,
    seconds_field,
)
from distbench.report.trace_work_tables import kernels_table, matmuls_table, modules_table, operators_table
from distbench.tables.table import Field, Table, TableCell, TableRow

_UNMATCHED = "not matched with a call of another rank that leaves it at the same time"
_NO_BANDWIDTH = (
    "needs the bytes, the transfer and the size of the group; nccl-tests has no factor for some operations"
)


_PARTS: tuple[tuple[str, str, str, str], ...] = (
    ("compute_s", "compute", "compute", "Computation: union of the kernels."),
    ("exposed_comm_s", "communication", "exposed comm", "Communication that no computation hides."),
    ("exposed_copy_s", "copy", "exposed copies", "Copies that neither of these hides."),
    ("idle_s", "idle", "idle", "Nothing runs."),
    *(
        (f"idle_{cause}_s", idle_key(cause), "", f"Part of idle_s. {doc}")
        for cause, doc in IDLE_CAUSE_DOCS.items()
    ),
    (
        "recomputed_s",
        RECOMPUTED,
        "recomputed",
        "Part of compute_s that activation checkpointing computes again.",
    ),
)
"""Column, part as ``part_seconds`` names it, heading and meaning."""
_LAUNCH_FIELDS = (
    seconds_field("launch_calls_s", "", "Time of the host in calls that launch work."),
    seconds_field("launch_delay_s", "launch ms", "Median time from the launch of a kernel to its begin."),
    Field(
        "queue_depth",
        "queue",
        "Median number of kernels and copies that wait on the device when the host launches another.",
        format=format_number,
    ),
)
_NO_LAUNCHES = "the trace has no launch"
_QUEUE_CAPTION = "queue: work in store on the device at a launch; near 0 the device waits for the host."


def steps_table(job: JobTrace) -> Table:
    """Parts of each step of each rank, and its launches."""
    rows = [
        TableRow(
            {
                "rank": rank.rank,
                "step": step.name,
                "seconds": step.seconds,
                **{name: step.parts.get(part, 0.0) for name, part, _, _ in _PARTS},
                **_launch_cells(step.launches),
            }
        )
        for rank in job.ranks
        for step in rank.steps
    ]
    fields = (
        RANK,
        Field("step", "step", "Name of the step in the trace.", type="varchar"),
        seconds_field("seconds", "ms", "Length of the step on the device."),
        *(seconds_field(name, heading and f"{heading} ms", doc) for name, _, heading, doc in _PARTS),
        *_LAUNCH_FIELDS,
    )
    marks = sorted({rank.step_marks for rank in job.ranks})
    caption = (
        f"Steps by {' and by '.join(marks)}. Compute, exposed communication, exposed copies and idle add up "
        f"to the step. {_QUEUE_CAPTION}"
    )
    return Table("Steps", caption, fields, tuple(rows))


def _launch_cells(launches: LaunchTimes) -> dict[str, TableCell]:
    return {
        name: _or_reason(value, _NO_LAUNCHES)
        for name, value in (
            ("launch_calls_s", launches.call_s),
            ("launch_delay_s", launches.delay_s),
            ("queue_depth", launches.queue_depth),
        )
    }


def losses_table(job: JobTrace) -> Table:
    """Causes of lost time, the largest first."""
    fields = (
        Field("kind", "loss", "Kind of loss.", type="varchar"),
        Field("name", "cause", "Its cause.", type="varchar"),
        Field("following", "before", "Of idle time: operators before which most of it lies.", type="varchar"),
        seconds_field(
            "seconds", "ms", "Time in a step, mean over steps and ranks: the most that mending it saves."
        ),
        SHARE,
        Field("rank", "most on", "Rank that loses most by it.", type="bigint", format="rank {}".format),
        seconds_field("rank_seconds", "its ms", "Time in a step of that rank."),
        Field("advice", "", "How to mend it.", type="varchar"),
    )
    rows = []
    for loss in job.losses:
        cells = {each.name: getattr(loss, each.name) for each in fields}
        rows.append(TableRow({**cells, "following": ", ".join(loss.following)}))
    caption = (
        "ms: time in a step, mean over steps and ranks; the most that a step would save without this loss."
    )
    return Table("Losses", caption, fields, tuple(rows))


def collectives_table(job: JobTrace) -> Table:
    """Collectives of each rank by operation, group, dtype and size."""
    fields = (
        Field("op", "operation", "Operation as nccl-tests names it.", type="varchar"),
        Field("group", "group", "Global ranks of the group, or its name in the trace.", type="varchar"),
        Field("dtype", "dtype", "Dtype of the elements.", type="varchar"),
        Field("bytes", "bytes", "Bytes of the full array, as nccl-tests counts.", "B"),
        RANK,
        Field("calls", "calls", "Calls in the trace.", type="bigint"),
        seconds_field("seconds", "ms", "Time in a call, mean; with waiting for other ranks."),
        seconds_field("transfer_s", "transfer ms", "Shortest time of any rank in the call, mean."),
        seconds_field("wait_s", "wait ms", "Rest of the time: waiting for the last rank, mean."),
        Field("algbw", "", "Bytes over transfer_s.", "B/s", "higher"),
        Field(
            "busbw",
            "bus GB/s",
            "Bus bandwidth: algbw times the factor of nccl-tests.",
            "B/s",
            "higher",
            format=format_gb_per_s,
        ),
        Field("late_rank", "late rank", "Rank that others waited for most often.", type="bigint", format=str),
    )
    rows = [
        TableRow({"rank": rank.rank, **_collective_cells(calls)})
        for rank in job.ranks
        for calls in group_by(
            rank.collectives, lambda call: (call.op, call.group, call.group_size, call.dtype, call.bytes)
        ).values()
    ]
    rows.sort(key=lambda row: -float(row.value("seconds") or 0) * int(row.value("calls") or 0))
    caption = (
        "ms: mean time of a call. transfer: the shortest time of any rank in it; without traces of other "
        "ranks it is not known, and no bandwidth either."
    )
    return Table("Collectives", caption, fields, tuple(rows))


def _collective_cells(calls: Sequence[TraceCollective]) -> dict[str, TableCell | str | float | None]:
    first = calls[0]
    transfers = [call.transfer_s for call in calls if call.transfer_s is not None]
    transfer = statistics.fmean(transfers) if len(transfers) == len(calls) else None
    algbw = None if first.bytes is None or not transfer else first.bytes / transfer
    factor = None if first.group_size is None else bus_factor(first.op, first.group_size)
    late = [call.late_rank for call in calls if call.late_rank is not None]
    waits = [call.wait_s for call in calls if call.wait_s is not None]
    return {
        "op": first.op,
        "group": first.group,
        "dtype": first.dtype,
        "bytes": _or_reason(first.bytes, "the trace does not tell its elements and dtype"),
        "calls": len(calls),
        "seconds": statistics.fmean(call.seconds for call in calls),
        "transfer_s": _or_reason(transfer, _UNMATCHED),
        "wait_s": _or_reason(statistics.fmean(waits) if len(waits) == len(calls) else None, _UNMATCHED),
        "algbw": _or_reason(algbw, _NO_BANDWIDTH),
        "busbw": _or_reason(None if algbw is None or factor is None else algbw * factor, _NO_BANDWIDTH),
        "late_rank": statistics.mode(late) if late else None,
    }


def _or_reason(value: float | None, reason: str) -> TableCell:
    return TableCell(value, reason="" if value is not None else reason)


def ranks_table(job: JobTrace) -> Table:
    """One row for each rank: its file, and how the host keeps the device busy."""
    fields = (
        RANK,
        Field("file", "file", "Name of the file.", type="varchar"),
        Field("device", "device", "Name of the device.", type="varchar"),
        Field("steps", "steps", "Number of steps.", type="bigint"),
        seconds_field("step_s", "step ms", "Length of a step, mean."),
        Field(
            "overlap",
            "comm hidden",
            "Part of the communication that computation hides, from 0 to 1.",
            better="higher",
            format=format_percent,
        ),
        *_LAUNCH_FIELDS,
    )
    rows = [
        TableRow(
            {
                "rank": rank.rank,
                "file": rank.path.name,
                "device": rank.device or None,
                "steps": len(rank.steps),
                "step_s": rank.step_s,
                "overlap": _overlap(rank),
                **_launch_cells(rank.launches),
            }
        )
        for rank in job.ranks
    ]
    return Table("Ranks", _QUEUE_CAPTION, fields, tuple(rows))


def memory_table(job: JobTrace) -> Table:
    """Memory of each step of each rank, if the profiler recorded it."""
    fields = (
        RANK,
        Field("step", "step", "Name of the step in the trace.", type="varchar"),
        Field("device", "device", "Number of the device; absent: the host.", type="bigint", format=str),
        Field("peak", "peak", "Largest number of bytes of tensors while the host was in the step.", "B"),
        Field("reserved", "reserved", "Largest number of bytes that the allocator held.", "B"),
        Field("growth", "growth", "Bytes of tensors at its end less those at its begin.", "B"),
    )
    rows = [
        TableRow(
            {
                "rank": rank.rank,
                "step": each.step,
                "device": _or_reason(each.device, "it is memory of the host"),
                "peak": each.peak,
                "reserved": _or_reason(each.reserved, "the host's allocator holds nothing beyond tensors"),
                "growth": each.growth,
            }
        )
        for rank in job.ranks
        for each in rank.memory
    ]
    caption = (
        "Bytes as the allocator counts them. That of the host counts what was allocated under the profiler, "
        "that of a device everything."
    )
    return Table("Memory", caption, fields, tuple(rows))


def _overlap(rank: RankTrace) -> float | None:
    whole = math.fsum(step.comm_s for step in rank.steps)
    exposed = math.fsum(step.parts.get("communication", 0.0) for step in rank.steps)
    return 1 - exposed / whole if whole else None


def changes_table(before: JobTrace, after: JobTrace) -> Table:
    """Causes of the difference between two traces."""
    changes = cause_changes([rank.causes for rank in before.ranks], [rank.causes for rank in after.ranks])
    fields = (
        Field("kind", "part", "Part of the step.", type="varchar"),
        name_field("name", "cause", "Operator, collective, copy or cause of idle time."),
        seconds_field("before", "before ms", "Time in a step of the other trace."),
        seconds_field("after", "after ms", "Time in a step of this trace."),
        Field("change", "change ms", "Difference.", "s", "lower", format=_signed_ms),
    )
    shown = [_sum_of_changes("step", "all", changes), *changes]
    rows = [TableRow({each.name: getattr(one, each.name) for each in fields}) for one in shown]
    caption = "Times of a step, mean over steps and ranks. The rows below the first add up to it."
    return Table("Changes", caption, fields, tuple(rows))


def _sum_of_changes(kind: str, name: str, changes: Sequence[CauseChange]) -> CauseChange:
    return CauseChange(
        kind, name, math.fsum(one.before for one in changes), math.fsum(one.after for one in changes)
    )


def _signed_ms(seconds: float) -> str:
    return f"{'+' if seconds > 0 else ''}{format_ms(seconds)}"


TABLES: dict[str, Callable[[JobTrace], Table]] = {
    "losses": losses_table,
    "steps": steps_table,
    "ranks": ranks_table,
    "collectives": collectives_table,
    "operators": operators_table,
    "modules": modules_table,
    "kernels": kernels_table,
    "matmuls": matmuls_table,
    "memory": memory_table,
}
"""Name -> table, in the order in which people see them."""
