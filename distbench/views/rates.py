"""The view ``rates``: what ``distbench probe`` measured of the machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from distbench.analysis.run import RunAnalysis
from distbench.core.grouping import group_by
from distbench.core.text import join_limited, one_line
from distbench.core.units import format_bytes, format_count
from distbench.prediction.probed_rates import PROBE, RATES_TABLE
from distbench.record import Record, RecordRow, Status, records_of_kind
from distbench.tables.table import PERCENT, Field, Table, TableCell, TableRow
from distbench.views.base import View

_EMPTY_NOTE = "This run measured no rates of the machine: its suite has no section probe."
_WHAT = {
    "forward_backward": "forward and backward",
    "update": "update",
    "collective": "alone",
    "collective_in_step": "after each layer",
    "matmul": "matrix product",
    "copy": "copy",
}


class RatesView(View):
    """A row for each rate of the machine."""

    title: ClassVar[str] = "Rates of the machine"
    order: ClassVar[int] = 49
    caption: ClassVar[str] = (
        "All ranks work at the same time, the slowest counts; medians over n repetitions. After each layer: "
        "what a collective there, forward and backward, adds to a training, per call. Size: of a collective "
        "its full array, of an update the updated parameters, of a matrix product its three matrices, of a "
        "copy what is read and written. ±: standard deviation of one repetition. Lower is better."
    )
    fields: ClassVar[tuple[Field, ...]] = (
        Field("what", "rate", "Rate, in words.", type="varchar"),
        Field("samples", "samples", "Samples of the micro-batch of each rank.", type="bigint"),
        Field("bytes", "size", "Bytes that it is about.", "B", type="bigint"),
        Field("seconds", "time", "Median over repetitions.", "s", "lower"),
        Field("relative_sd", "±", "Relative standard deviation of a repetition.", format=PERCENT),
        Field("repetitions", "n", "Repetitions.", type="bigint"),
        Field("rate", "", "Rate, as in machine_rates.", type="varchar"),
        Field("op", "", "Collective.", type="varchar"),
        Field("group_name", "", "Ranks that take part: all, node or between.", type="varchar"),
        Field("group_size", "", "Ranks of the group.", type="bigint"),
        Field("nodes", "", "Nodes that the ranks of the group are on.", type="bigint"),
        Field("reason", "", "Reason why it is not known; empty: it is.", type="varchar"),
        Field("world_size", "", "Devices.", type="bigint"),
        Field("device", "", "cpu or cuda.", type="varchar"),
        Field("case_name", "", "Name of the case that stands for those with these rates.", type="varchar"),
        Field("case_id", "", "Id of that case.", type="varchar"),
    )

    def table(self, run: RunAnalysis) -> Table:
        """Table with a row per rate and group of cases."""
        records = records_of_kind(run.records, PROBE)
        if not records:
            return self.make_table([], [_EMPTY_NOTE])
        rows = [_row(record, row) for record in records for row in record.tables.get(RATES_TABLE, [])]
        return self.make_table(rows, [*_notes(records)])

    def is_requested(self, run: RunAnalysis) -> bool:
        """True if rates were requested."""
        return bool(records_of_kind(run.records, PROBE))


def _row(record: Record, row: RecordRow) -> TableRow:
    case, op, group = record.case, row.get("op"), row.get("group")
    reason = row.get("reason") or ""
    words = " ".join(filter(None, [op, _WHAT.get(row["rate"], row["rate"])]))
    same = ("rate", "op", "samples", "bytes", "repetitions", "group_size", "nodes")
    return TableRow(
        {
            **{name: row.get(name) for name in same},
            "what": f"{words} ({group})" if group in ("node", "between") else words,
            "seconds": _cell(row, "seconds"),
            "relative_sd": _cell(row, "relative_sd"),
            "group_name": group,
            "reason": reason,
            "world_size": case.world_size,
            "device": case.device,
            "case_name": case.name,
            "case_id": case.id,
        },
        group=f"{case.name}, {format_count(case.world_size, case.device)}",
    )


def _cell(row: RecordRow, name: str) -> TableCell:
    """Cell of a number; absent if it was not measured, or nothing was identified by it."""
    reason = row.get("reason") or ""
    return TableCell(None, reason=reason) if reason else TableCell(row.get(name))


def _notes(records: Sequence[Record]) -> Iterator[str]:
    for record in records:
        if record.status is not Status.MEASURED:
            yield f"{record.case.name}: {record.status}: {one_line(record.reason)}."
        rows = [row for row in record.tables.get(RATES_TABLE, []) if row.get("reason")]
        for (rate, reason), same in group_by(rows, lambda row: (row["rate"], row["reason"])).items():
            what = join_limited([_place(row) for row in same])
            yield f"{record.case.name}, {_WHAT.get(rate, rate)}: {one_line(reason)} ({what})."


def _place(row: RecordRow) -> str:
    """Place of a row among those of its rate: ``all_reduce of 4.00 KiB``, ``4 samples``."""
    if op := row.get("op"):
        return f"{op} of {format_bytes(row['bytes'])}" if row.get("bytes") else op
    return format_count(row.get("samples") or 0, "sample")
