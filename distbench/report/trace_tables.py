"""Tables of the analysed traces of a job."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

from distbench.analysis.traces.breakdown import Piece, PieceKind, seconds_where
from distbench.analysis.traces.collectives import TraceCollective
from distbench.analysis.traces.differences import CauseChange, cause_changes
from distbench.analysis.traces.idle_causes import IDLE_CAUSE_DOCS, IdleCause
from distbench.analysis.traces.rank_trace import JobTrace, RankTrace
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


def steps_table(job: JobTrace) -> Table:
    """Parts of each step of each rank."""
    parts: tuple[tuple[str, str, str, Callable[[Piece], bool]], ...] = (
        ("compute_s", "compute", "Computation: union of the kernels.", _is("compute")),
        (
            "exposed_comm_s",
            "exposed comm",
            "Communication that no computation hides.",
            _is("communication"),
        ),
        ("exposed_copy_s", "exposed copies", "Copies that neither of these hides.", _is("copy")),
        ("idle_s", "idle", "Nothing runs.", _is("idle")),
        *(
            (f"idle_{cause}_s", "", f"Part of idle_s. {doc}", _is_idle(cause))
            for cause, doc in IDLE_CAUSE_DOCS.items()
        ),
        (
            "recomputed_s",
            "recomputed",
            "Part of compute_s that activation checkpointing computes again.",
            lambda piece: piece.work is not None and piece.kind == "compute" and piece.work.is_recomputed,
        ),
    )
    rows = [
        TableRow(
            {
                "rank": rank.rank,
                "step": step.name,
                "seconds": step.seconds,
                **{name: seconds_where(pieces, condition) for name, _, _, condition in parts},
            }
        )
        for rank in job.ranks
        for step, pieces in zip(rank.steps, rank.pieces, strict=True)
    ]
    fields = (
        RANK,
        Field("step", "step", "Name of the step in the trace.", type="varchar"),
        seconds_field("seconds", "ms", "Length of the step on the device."),
        *(seconds_field(name, heading and f"{heading} ms", doc) for name, heading, doc, _ in parts),
    )
    marks = sorted({rank.step_marks for rank in job.ranks})
    caption = (
        f"Steps by {' and by '.join(marks)}. Compute, exposed communication, exposed copies and idle add up "
        "to the step."
    )
    return Table("Steps", caption, fields, tuple(rows))


def _is(kind: PieceKind) -> Callable[[Piece], bool]:
    return lambda piece: piece.kind == kind


def _is_idle(cause: IdleCause) -> Callable[[Piece], bool]:
    return lambda piece: piece.idle is not None and piece.idle.cause == cause


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
        seconds_field("launch_delay_s", "launch ms", "Median time from the launch of a kernel to its begin."),
        Field(
            "queue_depth",
            "queue",
            "Median number of kernels and copies that wait on the device when the host launches another.",
            format=format_number,
        ),
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
                "launch_delay_s": rank.launch_delay_s,
                "queue_depth": rank.queue_depth,
            }
        )
        for rank in job.ranks
    ]
    caption = "queue: work in store on the device at a launch; near 0 the device waits for the host."
    return Table("Ranks", caption, fields, tuple(rows))


def _overlap(rank: RankTrace) -> float | None:
    whole = rank.comm_s
    exposed = seconds_where((piece for pieces in rank.pieces for piece in pieces), _is("communication"))
    return 1 - exposed / whole if whole else None


def changes_table(before: JobTrace, after: JobTrace) -> Table:
    """Causes of the difference between two traces."""
    changes = cause_changes(before.pieces, after.pieces)
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
}
"""Name -> table, in the order in which people see them."""
