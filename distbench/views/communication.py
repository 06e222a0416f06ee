"""The view ``communication``: what moved between ranks, how long it took, and why so much."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from distbench.analysis.case_summary import CaseSummary
from distbench.analysis.collectives import COLLECTIVES_JOB, CollectiveResult, collective_results
from distbench.analysis.communication import (
    CollectiveTraffic,
    CommunicationVolume,
    MessageBandwidth,
    collective_traffic,
    compare_volume,
    message_bandwidths,
    volume_sentence,
)
from distbench.analysis.link_utilization import CollectiveBaseline, LinkUtilization
from distbench.analysis.mesh_dimensions import call_count_mismatches, misplaced_traffic
from distbench.analysis.run import RunAnalysis
from distbench.core.grouping import group_by
from distbench.core.text import one_line
from distbench.core.units import format_bytes
from distbench.metrics.communication.traffic import SCALAR_BYTES
from distbench.record import Record, records_of_kind
from distbench.report.axes import CaseAxis, byte_ticks, log_ticks
from distbench.report.figures import (
    GREY,
    CaseStyle,
    Chart,
    ChartSelection,
    hover,
    make_figure,
    scatter,
    stacked_bars,
)
from distbench.report.palette import COMMUNICATION, collective_color
from distbench.report.view import CASE_FIELDS, View, case_cells
from distbench.tables.table import PERCENT, Field, Table, TableCell, TableRow
from distbench.views import _mesh_dimensions

_MIB = 2**20
_MAX_OPERATIONS = 8
_PAIRED_BARS = (("measured", -0.2, 1.0), ("theory", 0.2, 0.45))
"""Bars of an operation: the attribute of its volume, the offset from its case's position, and the opacity."""
_BASELINE_CAPTION = (
    "of alone: the time of the same messages when nothing else runs (measured by the section "
    "collectives of this run), over transfer. Near 100% the link is the limit; far below, the training "
    "does not use the full link. Bursts after a pause and overlapping calls give more than 100%."
)
_NO_BANDWIDTH = TableCell(None, reason="too small to measure bandwidth")


def _gb_per_s(value: float) -> str:
    return f"{value / 1e9:.3g}"


_OPERATION = Field("op", "collective", "Operation that the strategy calls.", type="varchar")
_VOLUME = (
    Field("measured", "measured", "Payload per step.", "B", "lower"),
    Field("theory", "theory", "Payload per step by the strategy's communication model.", "B", "lower"),
)
_MESSAGE = (
    Field("group_size", "ranks", "Ranks of the process group.", type="bigint"),
    Field("nodes", "nodes", "Nodes that these ranks are on.", type="bigint"),
    Field("bytes", "message", "Payload of one call.", "B"),
    Field("busbw", "busbw, GB/s", "Median over the calls.", "B/s", "higher", format=_gb_per_s),
    Field("calls", "calls", "Calls of this size.", type="bigint"),
)
_EXPOSURE = (
    Field("exposed", "exposed", "Share of a profiled step.", "", "lower", format=PERCENT),
    Field("hidden", "hidden", "Share of a profiled step.", format=PERCENT),
)
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
    Field("algbw", "algbw", "Algorithm bandwidth: payload over transfer.", "B/s", "higher", format=_gb_per_s),
    Field(
        "busbw", "busbw", "Bus bandwidth: algbw times nccl-tests' factor.", "B/s", "higher", format=_gb_per_s
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
    fields = (*(replace(field, heading="") for field in CASE_FIELDS), _OPERATION, *_TRAFFIC, _UTILIZATION)

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
            if (why := volume_sentence(detail))
        ]
        if measured:
            return self.make_table(rows, notes, f"{self.caption} {_BASELINE_CAPTION}")
        # that column is empty in a run without collectives
        return replace(
            self.make_table(rows, notes), fields=(*self.fields[:-1], replace(_UTILIZATION, heading=""))
        )

    def charts(self, run: RunAnalysis) -> Iterator[Chart]:
        yield from _volume_chart(run)
        yield from _mesh_dimensions.charts(run)
        yield from _bandwidth_chart(run)
        yield from _exposure_chart(run)


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


def _volume_chart(run: RunAnalysis) -> Iterator[Chart]:
    shown = ChartSelection.fastest(run, _volume_of)
    if not shown.items:
        return
    operations = _operations([of for *_, of in shown.items])[:_MAX_OPERATIONS]
    axis = CaseAxis.of((row, name) for row, name, _ in shown.items)
    pairs = zip(*(_bars(shown, operations, axis, *look) for look in _PAIRED_BARS), strict=True)
    rows = [
        TableRow(
            {
                **case_cells(row.case, name),
                "op": op,
                **{what: _volume_cell(of, what, op) for what, *_ in _PAIRED_BARS},
            }
        )
        for row, name, of in shown.items
        for op in _operations([of])
    ]
    yield Chart(
        "communication-volume",
        "Volume by collective",
        "Payload of a rank per step: the upper bar of each pair is measured, the lower and paler one is "
        "the theory for its strategy. Lower is better; the notes below say why they "
        f"differ.{shown.truncation_note}",
        make_figure(
            [trace for pair in pairs for trace in pair],
            "MiB per step (lower is better)",
            rows=axis.labels,
            barmode="stack",
        ),
        Table("", "", (*CASE_FIELDS, _OPERATION, *_VOLUME), tuple(rows)),
        height=130 + 36 * len(axis.labels),
    )


def _volume_of(row: CaseSummary) -> CommunicationVolume | None:
    moved = compare_volume(row.representative_trial) if row.representative_trial else None
    return moved if moved and _operations([moved]) else None


def _bars(
    shown: ChartSelection[CommunicationVolume],
    operations: Sequence[str],
    axis: CaseAxis,
    what: str,
    offset: float,
    opacity: float,
) -> list[dict[str, Any]]:
    """Bars of attribute *what* for each operation: one for each case."""
    fields = tuple(Field(op, op, unit="B") for op in operations)
    rows = [
        TableRow({**case_cells(row.case, name), **{op: _volume_cell(of, what, op) for op in operations}})
        for row, name, of in shown.items
    ]
    labels = {op: f"{one_line(op)}, {what}" for op in operations}
    table = Table("", "", (*CASE_FIELDS, *fields), tuple(rows))
    colours = {op: collective_color(op) for op in operations}
    places = [place + offset for place in axis.positions]
    return stacked_bars(table, labels, colours, _MIB, places=places, width=0.36, opacity=opacity)


def _volume_cell(of: CommunicationVolume, what: str, op: str) -> TableCell:
    size: float | None = getattr(of, what).get(op)
    return TableCell(size, "none" if size is None else "")


def _operations(volumes: Sequence[CommunicationVolume]) -> list[str]:
    """Operations by the bytes that they move or should move, most first."""
    sums: dict[str, float] = {}
    for each in volumes:
        for op, size in (*each.measured.items(), *each.theory.items()):
            sums[op] = sums.get(op, 0.0) + size
    return sorted((op for op, size in sums.items() if size), key=lambda op: -sums[op])


def _bandwidth_chart(run: RunAnalysis) -> Iterator[Chart]:
    shown = ChartSelection.fastest(
        run, lambda row: message_bandwidths(row.representative_trial) if row.representative_trial else None
    )
    messages = [
        (row, name, each) for row, name, of in shown.items for each in of if each.bytes > SCALAR_BYTES
    ]
    if not messages:
        return
    style, families = (
        CaseStyle.for_cases(run.cases),
        group_by(messages, lambda item: item[0].case.strategy.name),
    )
    most = max((each for *_, each in messages), key=lambda each: each.busbw)
    rows = [TableRow({**case_cells(row.case, name), **vars(each)}) for row, name, each in messages]
    yield Chart(
        "communication-busbw",
        "Bus bandwidth against message size",
        "Each mark is one kind of collective of one case at one message size: bus bandwidth as "
        "nccl-tests defines it, the median over its calls, higher is better. Both axes are "
        "logarithmic: if the bandwidth falls to the left, messages are too small for the link. Lines "
        f"are the same collectives alone, if the suite measures them.{shown.truncation_note}",
        make_figure(
            [
                *(_marks(family, of, style) for family, of in families.items()),
                *_baseline_lines(collective_results(records_of_kind(run.records, COLLECTIVES_JOB))),
            ],
            "size of a message",
            "busbw, GB/s (higher is better)",
            xaxis={"type": "log", **byte_ticks(each.bytes for *_, each in messages)},
            yaxis={"type": "log", **log_ticks(each.busbw / 1e9 for *_, each in messages)},
        ),
        Table("", "", (*CASE_FIELDS, _OPERATION, *_MESSAGE), tuple(rows)),
        finding=f"Highest bus bandwidth: {_gb_per_s(most.busbw)} GB/s, at {format_bytes(most.bytes)}.",
        height=420,
    )


def _baseline_lines(alone: Sequence[CollectiveResult]) -> Iterator[dict[str, Any]]:
    """A grey line for each operation and group that was measured alone."""
    for (op, among), same in group_by(alone, lambda each: (each.key.op, each.key.participants)).items():
        points = sorted((each.key.bytes, each.busbw.value / 1e9) for each in same)
        yield scatter(
            f"{op} alone, {among}",
            [size for size, _ in points],
            [busbw for _, busbw in points],
            "lines",
            line={"color": GREY, "width": 1},
        )


def _marks(
    family: str, messages: Sequence[tuple[CaseSummary, str, MessageBandwidth]], style: CaseStyle
) -> dict[str, Any]:
    return scatter(
        family,
        [each.bytes for *_, each in messages],
        [each.busbw / 1e9 for *_, each in messages],
        hovers=[
            hover(
                row.case.name,
                f"{one_line(each.op)} of {format_bytes(each.bytes)} among {_participants(each)}",
                f"busbw {_gb_per_s(each.busbw)} GB/s, median of {each.calls}",
            )
            for row, _, each in messages
        ],
        cases=[row.case.id for row, *_ in messages],
        marker=style.marker(family) | {"size": 8},
    )


def _participants(of: MessageBandwidth) -> str:
    return f"{of.group_size} ranks" + (f" on {of.nodes} nodes" if of.nodes > 1 else "")


def _exposure_chart(run: RunAnalysis) -> Iterator[Chart]:
    shown = ChartSelection.fastest(run, _exposure_shares)
    if not shown.items:
        return
    rows = [TableRow({**case_cells(row.case, name), **shares}) for row, name, shares in shown.items]
    times = [
        TableRow({**case_cells(row.case, name), **_exposure_seconds(row, of)})
        for row, name, of in shown.items
    ]
    fields = tuple(replace(each, unit="s", format=None) for each in _EXPOSURE)
    timed = Table("", "", (*CASE_FIELDS, *fields), tuple(times))
    labels = {"exposed": "exposed", "hidden": "hidden by computation"}
    axis = CaseAxis.of((row, name) for row, name, _ in shown.items)
    yield Chart(
        "communication-exposed",
        "Exposed communication",
        "Time of a step in which a rank communicates: its share of a profiled step (mean over ranks) "
        "times the step time without the profiler. Exposed communication costs time (lower is better); "
        f"hidden communication costs little on a GPU.{shown.truncation_note}",
        make_figure(
            stacked_bars(timed, labels, COMMUNICATION, 1e-3, places=axis.positions),
            "ms of a step (exposed: lower is better)",
            rows=axis.labels,
            barmode="stack",
        ),
        Table("", "", (*CASE_FIELDS, *_EXPOSURE), tuple(rows)),
    )


def _exposure_seconds(row: CaseSummary, shares: dict[str, float]) -> dict[str, float]:
    """Seconds in a step without the profiler."""
    return {name: share * row.values["step_s"].value for name, share in shares.items()}


def _exposure_shares(row: CaseSummary) -> dict[str, float] | None:
    """Shares of a profiled step in exposed and in hidden communication; None if unknown."""
    step, comm, exposed = (row.values.get(f"{name}_s") for name in ("profile_step", "comm", "comm_exposed"))
    if step is None or comm is None or exposed is None or step.value <= 0 or comm.value <= 0:
        return None
    if "step_s" not in row.values:
        return None
    hidden = max(0.0, comm.value - exposed.value)
    return {"exposed": exposed.value / step.value, "hidden": hidden / step.value}
