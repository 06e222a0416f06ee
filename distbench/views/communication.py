"""The view ``communication``: what moved between ranks, how long it took, and why so much."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from distbench.analysis.case_summary import CaseSummary
from distbench.analysis.collectives import (
    COLLECTIVES_JOB,
    CollectiveBaseline,
    LinkUtilization,
    collective_results,
)
from distbench.analysis.communication import (
    CollectiveTraffic,
    collective_traffic,
    volume_sentence,
)
from distbench.analysis.mesh_dimensions import call_count_mismatches, misplaced_traffic
from distbench.analysis.run import RunAnalysis
from distbench.analysis.wire_traffic import wire_sentence
from distbench.core.text import one_line
from distbench.core.units import format_bytes, format_gb_per_s
from distbench.metrics.communication.traffic import SCALAR_BYTES
from distbench.record import Record, records_of_kind
from distbench.tables.table import Field, Table, TableCell, TableRow
from distbench.views._communication_charts import communication_charts
from distbench.views.base import CASE_FIELDS, OPERATION, View, case_cells
from distbench.views.charts.figures import (
    Chart,
)

_BASELINE_CAPTION = (
    "of alone: the time of the same messages when nothing else runs (measured by the section "
    "collectives of this run), over transfer. Near 100% the link is the limit; far below, the training "
    "does not use the full link. Bursts after a pause and overlapping calls give more than 100%."
)
_NO_BANDWIDTH = TableCell(None, reason="too small to measure bandwidth")


_TRAFFIC = (
    Field("dtype", "", "Dtype of what it moves.", type="varchar"),
    Field("group_size", "", "Ranks of the process group.", type="bigint"),
    Field("dimension", "", "Dimension of the device mesh of the group.", type="varchar"),
    Field("nodes", "", "Nodes that these ranks are on; 1: inside a node.", type="bigint"),
    Field("calls", "", "Calls per step."),
    Field("bytes", "payload", "Payload per step, by nccl-tests' convention: full arrays.", "B", "lower"),
    Field(
        "wire_bytes",
        "wire",
        "What a rank sends per step, of a recv receives, by the algorithm that ran.",
        "B",
        "lower",
    ),
    Field("transfer_s", "transfer", "Shortest time of any rank of the group, per step.", "s", "lower"),
    Field("wait_s", "wait", "The rest: waiting for the slowest rank.", "s", "lower"),
    Field("exposed_s", "exposed", "Time that no computation hides.", "s", "lower"),
    Field(
        "algbw",
        "algbw",
        "Algorithm bandwidth: payload over transfer.",
        "B/s",
        "higher",
        format=format_gb_per_s,
    ),
    Field(
        "busbw",
        "busbw",
        "Bus bandwidth: algbw times nccl-tests' factor.",
        "B/s",
        "higher",
        format=format_gb_per_s,
    ),
)


_UTILIZATION = Field(
    "attained",
    "of alone",
    "Time of the same messages alone (section collectives of the suite), over transfer.",
    "",
    "higher",
    format="{:.0%}".format,
)


class CommunicationView(View):
    """A row for each kind of collective of each case; charts of volume, bandwidth, and what is exposed."""

    title = "Communication"
    order = 50
    caption = (
        "One step of a rank, mean over ranks and profiled steps, by kind of collective, with its "
        "number of calls. payload: the full array of each, as called; wire: what a rank sends, of a "
        "recv receives, by the algorithm that the backend ran; transfer: the shortest time of any rank "
        "of the group; wait: the rest, waiting for the slowest; exposed: not hidden by computation; "
        "algbw, busbw: GB/s as nccl-tests defines them, from payload and transfer. Lower is better, "
        "except for those two. Concurrent calls are added up, so a row may exceed the step; a message "
        "that is posted early and awaited late counts until then. On a CPU, gloo's threads share the "
        "cores with the computation: hidden communication still slows it down, and busbw is that of "
        "memory."
    )
    fields = (*(replace(field, heading="") for field in CASE_FIELDS), OPERATION, *_TRAFFIC, _UTILIZATION)

    def table(self, run: RunAnalysis) -> Table:
        profiled = [row for row in run.cases if row.representative_trial]
        names = run.short_names(profiled)
        details = [
            (row, names[row.case.id], row.representative_trial)
            for row in profiled
            if row.representative_trial
        ]
        measured = collective_results(records_of_kind(run.records, COLLECTIVES_JOB))
        alone = {
            size: CollectiveBaseline.from_results(measured, size)
            for size in {row.case.world_size for row in profiled}
        }
        rows = [
            shown
            for row, name, detail in details
            for shown in _rows(row, name, collective_traffic(detail), alone[row.case.world_size])
        ]
        notes = [
            f"{name}: {why}{_node_traffic_note(row)}{_mismatch_notes(detail)}"
            for row, name, detail in details
            if (why := _traffic_note(detail))
        ]
        if measured:
            return self.make_table(rows, notes, f"{self.caption} {_BASELINE_CAPTION}")
        # that column is empty in a run without collectives
        return replace(
            self.make_table(rows, notes), fields=(*self.fields[:-1], replace(_UTILIZATION, heading=""))
        )

    def charts(self, run: RunAnalysis) -> Iterator[Chart]:
        yield from communication_charts(run)

    def has_warning(self, run: RunAnalysis) -> bool:
        """True if collectives of any case are not those of theory, without a known cause."""
        return any(_mismatch_notes(row.representative_trial) for row in run.cases if row.representative_trial)


def _traffic_note(record: Record) -> str:
    return "; ".join(clause for clause in (wire_sentence(record), volume_sentence(record)) if clause)


def _node_traffic_note(row: CaseSummary) -> str:
    """Measured and expected bytes that left a node in a timed step; empty if not counted."""
    sent, theory = row.values.get("node_sent_bytes"), row.values.get("node_bytes_theory")
    if sent is None or theory is None:
        return ""
    return (
        f" A node sent {format_bytes(sent.value)} in a timed step, headers included; "
        f"{format_bytes(theory.value)} is the theoretical minimum."
    )


def _mismatch_notes(record: Record) -> str:
    """Collectives issued more or less often than in theory, or over a different dimension."""
    return "".join(f" {why}." for why in (misplaced_traffic(record), call_count_mismatches(record)) if why)


def _rows(
    row: CaseSummary, name: str, kinds: Sequence[CollectiveTraffic], alone: CollectiveBaseline
) -> Iterator[TableRow]:
    """Rows of one case; they name the mesh dimension if there are several."""
    several = len({kind.dimension for kind in kinds if kind.dimension}) > 1
    for kind in kinds:
        assert row.representative_trial, "only those have kinds"
        over = f" over {kind.dimension}" if several and kind.dimension else ""
        yield _row(row, name, kind, alone.utilization(row.representative_trial, kind), over)


def _row(
    row: CaseSummary, name: str, kind: CollectiveTraffic, attained: LinkUtilization, over: str
) -> TableRow:
    dtype = kind.dtype.replace("float", "fp").replace("bfp", "bf")
    cells: dict[str, Any] = {field.name: getattr(kind, field.name) for field in _TRAFFIC}
    if kind.bytes <= SCALAR_BYTES:
        # a norm or a flag shows no bandwidth
        cells |= {"algbw": _NO_BANDWIDTH, "busbw": _NO_BANDWIDTH}
    far = f" between {kind.nodes} nodes" if kind.nodes > 1 else ""
    operation = TableCell(kind.op, one_line(f"{kind.calls:g} {kind.op} {dtype}{over}{far}"))
    share = TableCell(attained.share, reason=attained.reason)
    return TableRow({**case_cells(row.case), "op": operation, **cells, "attained": share}, group=name)
