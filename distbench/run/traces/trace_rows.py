"""Rows of the tables of a record that traces tell: collectives, a timeline, and tables of their own."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from distbench.analysis.step_timeline import COMMUNICATION, STEP, RankStep
from distbench.analysis.traces.collectives import TraceCollective
from distbench.analysis.traces.job_trace import JobTrace
from distbench.analysis.traces.rank_trace import MeasuredStep
from distbench.analysis.traces.timeline import with_collectives
from distbench.core.columns import TableColumn, TableSpec
from distbench.metrics.communication import Communication
from distbench.metrics.communication.traffic import wire_factor
from distbench.metrics.profile import step_timeline
from distbench.record import RecordRow
from distbench.run.traces.trace_values import calls_in
from distbench.tables.table import CellValue, Table
from distbench.traces.intervals import length

NOTES = TableSpec(
    "trace_notes",
    "Sentences on what the traces of a run lack, and on choices that were made for them.",
    (TableColumn("note", "varchar", "The sentence."),),
    by_rank=False,
)
TIMELINE = dataclasses.replace(
    step_timeline.TABLE,
    doc=f"The step in the middle of the traces, of up to {step_timeline.MAX_RANKS} ranks. The first row of a "
    "rank is of kind step. Times are relative to the begin of the step on each rank.",
)
_NAMES = {name: f"trace_{name}" for name in ("steps", "ranks", "collectives", "memory")}
"""Tables of traces whose names are those of other tables of records and SQL."""
COLLECTIVES = Communication.tables[0]
_NEEDED = ("group", "group_size", "dtype", "bytes")
_LARGEST = (1 << 63) - 1


def table_name(name: str) -> str:
    """Name in records and SQL of the table *name* of ``distbench trace``."""
    return _NAMES.get(name, name)


def own_tables(tables: Mapping[str, Table]) -> Iterator[tuple[TableSpec, list[RecordRow]]]:
    """Yield the description and the rows of each of *tables*, which are by name."""
    for name, table in tables.items():
        # of losses, the rank is the one that loses most
        by_rank = name != "losses" and any(each.name == "rank" for each in table.fields)
        columns = tuple(
            TableColumn(each.name, "bigint" if each.type == "boolean" else each.type, each.doc, each.unit)
            for each in table.fields
            if not (by_rank and each.name == "rank")
        )
        spec = TableSpec(table_name(name), f"{table.title} of traces. {table.caption}", columns, by_rank)
        yield spec, [{key: _storable(value) for key, value in row.items()} for row in table.records()]


def _storable(value: CellValue) -> CellValue:
    # files have numbers of 64 bits, and a damaged trace any number
    return None if isinstance(value, int) and abs(value) > _LARGEST else value


def collective_rows(job: JobTrace, steps: Mapping[int, Sequence[MeasuredStep]]) -> list[RecordRow]:
    """Rows of ``collectives``: the calls in *steps*, which are by rank; none unless all are fully known.

    What is known of each is in the table of the traces' own.
    """
    rows = [
        _collective_row(call, rank.rank, number, place)
        for rank in job.ranks
        for number, step in enumerate(steps[rank.rank])
        for place, call in enumerate(calls_in(rank, step))
    ]
    return rows if all(row[key] is not None for row in rows for key in _NEEDED) else []


def _collective_row(call: TraceCollective, rank: int, step: int, place: int) -> RecordRow:
    factor = None if call.group_size is None else wire_factor(call.op, call.group_size)
    row: RecordRow = {
        "rank": rank,
        "step": step,
        "place": place,
        "op": call.op,
        "ran": call.op,
        # a group without ranks has only a name
        "group": None if call.group is None or call.group.startswith("group ") else call.group,
        "group_size": call.group_size,
        "dimension": None,
        "nodes": None,
        "dtype": call.dtype,
        "bytes": _storable(call.bytes),
        "wire_bytes": None if factor is None or call.bytes is None else float(call.bytes * factor),
        "seconds": call.seconds,
        "transfer_s": call.transfer_s,
        "wait_s": call.wait_s,
        "exposed_s": length(call.exposed),
    }
    return row


def timeline_rows(job: JobTrace, steps: Mapping[int, Sequence[MeasuredStep]]) -> Iterator[RecordRow]:
    """Yield rows of ``timeline``: the step in the middle of the traces of the first ranks.

    Args:
        job: The traces.
        steps: Steps that the record has, by rank.
    """
    for rank in job.ranks[: step_timeline.MAX_RANKS]:
        name = rank.middle_step[0].name
        number = next((i for i, step in enumerate(steps[rank.rank]) if step.name == name), None)
        is_matched = all(call.transfer_s is not None for call in rank.collectives)
        for row in _lanes(with_collectives(rank.middle_step, rank.collectives), is_matched=is_matched):
            yield {"rank": rank.rank, "step": number, **row}


def _lanes(step: RankStep, *, is_matched: bool) -> Iterator[RecordRow]:
    whole = {"begin_s": step.begin, "end_s": step.end, "busy_s": step.busy, "bridged_s": step.merge_gap}
    yield {"kind": STEP, "name": "", **whole}
    for each in step.activities:
        row = {"kind": each.kind, "name": each.name, "begin_s": each.begin, "end_s": each.end}
        yield {
            **row,
            "busy_s": each.busy,
            **({"exposed_s": each.exposed} if each.kind == COMMUNICATION else {}),
            **({"group": each.group} if each.group else {}),
            **({"wait_s": each.wait} if each.kind == COMMUNICATION and is_matched else {}),
        }
