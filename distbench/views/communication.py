"""The view ``communication``: what moved between ranks, how long it took, and why so much."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from distbench.analysis.case_summary import CaseSummary
from distbench.analysis.collectives import KIND, Result, results
from distbench.analysis.communication import (
    Bandwidth,
    Traffic,
    Volume,
    bandwidths,
    explanation,
    traffic,
    volume,
)
from distbench.analysis.link_utilization import Alone, Attained
from distbench.analysis.mesh_dimensions import miscounted, misplaced
from distbench.analysis.run import AnalysedRun
from distbench.core.grouping import grouped
from distbench.core.text import one_line
from distbench.core.units import bytes_text
from distbench.metrics.communication.traffic import SCALAR
from distbench.record import Record, of_kind
from distbench.report.axes import Rows, byte_ticks, log_ticks
from distbench.report.figures import GREY, Chart, Shown, Style, bars, drawn, hover, scatter
from distbench.report.palette import COMMUNICATION, collective
from distbench.report.view import CASE, View, case_cells
from distbench.tables.table import PERCENT, Cell, Field, Row, Sheet
from distbench.views import _mesh_dimensions

_MIB = 2**20
_MOST_OPERATIONS = 8
_PAIR = (("measured", -0.2, 1.0), ("theory", 0.2, 0.45))
"""The bars of an operation: what of its volume, where beside the place of its case, and how opaque."""
_OF_ALONE = (
    "of alone: the time that the same messages take when nothing else runs, as the collectives of this run "
    "measured it, over transfer. Near 100% the link is the limit, far below it the training leaves some "
    "unused; bursts that a link lets through after a pause, and calls that overlap, give more."
)
_NO_BANDWIDTH = Cell(None, reason="too small to say anything of bandwidth")


def _giga(value: float) -> str:
    return f"{value / 1e9:.3g}"


_OPERATION = Field("op", "collective", "Operation as asked for by the strategy.", type="varchar")
_VOLUME = (
    Field("measured", "measured", "Payload per step.", "B", "lower"),
    Field("theory", "theory", "Payload per step that the strategy's model gives.", "B", "lower"),
)
_MESSAGE = (
    Field("group_size", "ranks", "Ranks of the process group.", type="bigint"),
    Field("nodes", "nodes", "Nodes that these ranks are on.", type="bigint"),
    Field("bytes", "message", "Payload of one call.", "B"),
    Field("busbw", "busbw, GB/s", "Median over the calls.", "B/s", "higher", format=_giga),
    Field("calls", "calls", "Calls of this size.", type="bigint"),
)
_EXPOSURE = (
    Field("exposed", "exposed", "Share of a profiled step.", "", "lower", format=PERCENT),
    Field("hidden", "hidden", "Share of a profiled step.", format=PERCENT),
)
_TRAFFIC = (
    Field("dtype", "", "Dtype of what it moves.", type="varchar"),
    Field("group_size", "", "Ranks of the process group.", type="bigint"),
    Field("dimension", "", "Dimension of the device mesh that the group is over.", type="varchar"),
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
    Field("algbw", "algbw", "Algorithm bandwidth: payload over transfer.", "B/s", "higher", format=_giga),
    Field("busbw", "busbw", "Bus bandwidth: algbw times nccl-tests' factor.", "B/s", "higher", format=_giga),
)


_ATTAINED = Field(
    "attained",
    "of alone",
    "Time that the same messages take alone (section collectives of the suite), over transfer.",
    "",
    "higher",
    format="{:.0%}".format,
)


class CommunicationView(View):
    """A row for each kind of collective of each case; charts of volume, bandwidth, and what is exposed."""

    title = "Communication"
    place = 50
    caption = (
        "One step of a rank, mean over ranks and profiled steps, by kind of collective, with its number of "
        "calls. payload: the full array of each, as asked for; wire: what a rank sends, of a recv receives, "
        "by the algorithm that the backend ran; transfer: the shortest time of any rank of the group; wait: "
        "the rest, waiting for the slowest; exposed: not hidden by computation; algbw, busbw: GB/s as "
        "nccl-tests defines them, from payload and transfer. Lower is better, except for those two. Calls "
        "that run at once are added up, so that a row may exceed the step; and a message that is asked for "
        "early and waited for late seems to take until then. On a CPU, gloo's threads share the cores with "
        "the computation: hidden communication still slows it down, and busbw is that of memory."
    )
    fields = (*(replace(field, heading="") for field in CASE), _OPERATION, *_TRAFFIC, _ATTAINED)

    def sheet(self, run: AnalysedRun) -> Sheet:
        profiled = [row for row in run.cases if row.detail]
        names = run.names(profiled)
        details = [(row, names[row.case.id], row.detail) for row in profiled if row.detail]
        measured = results(of_kind(run.records, KIND))
        alone = {size: Alone.of(measured, size) for size in {row.case.world_size for row in profiled}}
        rows = [
            shown
            for row, name, detail in details
            for shown in _rows(row, name, traffic(detail), alone[row.case.world_size])
        ]
        notes = [
            f"{name}: {why}{_left_nodes(row)}{_otherwise(detail)}"
            for row, name, detail in details
            if (why := explanation(detail))
        ]
        if measured:
            return self.made(rows, notes, f"{self.caption} {_OF_ALONE}")
        # a run without collectives has nothing in that column
        return replace(self.made(rows, notes), fields=(*self.fields[:-1], replace(_ATTAINED, heading="")))

    def charts(self, run: AnalysedRun) -> Iterator[Chart]:
        yield from _volumes(run)
        yield from _mesh_dimensions.charts(run)
        yield from _bandwidths(run)
        yield from _exposed(run)


def _left_nodes(row: CaseSummary) -> str:
    """What left a node in a timed step, beside theory; empty if that was not counted."""
    sent, theory = row.values.get("node_sent_bytes"), row.values.get("node_bytes_theory")
    if sent is None or theory is None:
        return ""
    return (
        f" A node sent {bytes_text(sent.value)} in a timed step, headers included; "
        f"{bytes_text(theory.value)} must leave it by theory."
    )


def _otherwise(record: Record) -> str:
    """Where collectives are issued more or less often than in theory, or over another dimension."""
    return "".join(f" {why}." for why in (misplaced(record), miscounted(record)) if why)


def _rows(row: CaseSummary, name: str, kinds: Sequence[Traffic], alone: Alone) -> Iterator[Row]:
    """The rows of one case; they say over which dimension of a mesh where there are several."""
    several = len({kind.dimension for kind in kinds if kind.dimension}) > 1
    for kind in kinds:
        assert row.detail, "only those have kinds"
        over = f" over {kind.dimension}" if several and kind.dimension else ""
        yield _row(row, name, kind, alone.attained(row.detail, kind), over)


def _row(row: CaseSummary, name: str, kind: Traffic, attained: Attained, over: str) -> Row:
    dtype = kind.dtype.replace("float", "fp").replace("bfp", "bf")
    cells: dict[str, Any] = {field.name: getattr(kind, field.name) for field in _TRAFFIC}
    if kind.bytes <= SCALAR:
        # a norm or a flag says nothing of bandwidth
        cells |= {"algbw": _NO_BANDWIDTH, "busbw": _NO_BANDWIDTH}
    far = f" between {kind.nodes} nodes" if kind.nodes > 1 else ""
    operation = Cell(kind.op, one_line(f"{kind.calls:g} {kind.op} {dtype}{over}{far}"))
    share = Cell(attained.share, reason=attained.reason)
    return Row({**case_cells(row.case), "op": operation, **cells, "attained": share}, group=name)


def _volumes(run: AnalysedRun) -> Iterator[Chart]:
    shown = Shown.of(run, _moved)
    if not shown.items:
        return
    operations = _operations([of for *_, of in shown.items])[:_MOST_OPERATIONS]
    axis = Rows.of((row, name) for row, name, _ in shown.items)
    pairs = zip(*(_bars(shown, operations, axis, *look) for look in _PAIR), strict=True)
    rows = [
        Row({**case_cells(row.case, name), "op": op, **{what: _size(of, what, op) for what, *_ in _PAIR}})
        for row, name, of in shown.items
        for op in _operations([of])
    ]
    yield Chart(
        "communication-volume",
        "Volume by collective",
        "Payload of a rank per step: the upper bar of each pair is measured, the lower and paler one is "
        "the theory for its strategy. Lower is better; the notes below say why they "
        f"differ.{shown.left_out}",
        drawn(
            [trace for pair in pairs for trace in pair],
            "MiB per step (lower is better)",
            rows=axis.labels,
            barmode="stack",
        ),
        Sheet("", "", (*CASE, _OPERATION, *_VOLUME), tuple(rows)),
        height=130 + 36 * len(axis.labels),
    )


def _moved(row: CaseSummary) -> Volume | None:
    moved = volume(row.detail) if row.detail else None
    return moved if moved and _operations([moved]) else None


def _bars(
    shown: Shown[Volume], operations: Sequence[str], axis: Rows, what: str, offset: float, opacity: float
) -> list[dict[str, Any]]:
    """The bars of *what* of each operation: one for each case."""
    fields = tuple(Field(op, op, unit="B") for op in operations)
    rows = [
        Row({**case_cells(row.case, name), **{op: _size(of, what, op) for op in operations}})
        for row, name, of in shown.items
    ]
    labels = {op: f"{one_line(op)}, {what}" for op in operations}
    sheet = Sheet("", "", (*CASE, *fields), tuple(rows))
    colours = {op: collective(op) for op in operations}
    places = [place + offset for place in axis.places]
    return bars(sheet, labels, colours, _MIB, places=places, width=0.36, opacity=opacity)


def _size(of: Volume, what: str, op: str) -> Cell:
    size: float | None = getattr(of, what).get(op)
    return Cell(size, "none" if size is None else "")


def _operations(volumes: Sequence[Volume]) -> list[str]:
    """The operations by the bytes that they move or should, most first."""
    sums: dict[str, float] = {}
    for each in volumes:
        for op, size in (*each.measured.items(), *each.theory.items()):
            sums[op] = sums.get(op, 0.0) + size
    return sorted((op for op, size in sums.items() if size), key=lambda op: -sums[op])


def _bandwidths(run: AnalysedRun) -> Iterator[Chart]:
    shown = Shown.of(run, lambda row: bandwidths(row.detail) if row.detail else None)
    messages = [(row, name, each) for row, name, of in shown.items for each in of if each.bytes > SCALAR]
    if not messages:
        return
    style, families = Style.of(run.cases), grouped(messages, lambda item: item[0].case.strategy.name)
    most = max((each for *_, each in messages), key=lambda each: each.busbw)
    rows = [Row({**case_cells(row.case, name), **vars(each)}) for row, name, each in messages]
    yield Chart(
        "communication-busbw",
        "Bus bandwidth against message size",
        "Each mark is one kind of collective of one case at one message size: bus bandwidth as nccl-"
        "tests defines it, the median over its calls, higher is better. Both axes are logarithmic: where "
        "marks fall to the left, messages are too small for the link. Lines are the same collectives alone, "
        f"if the suite measures them.{shown.left_out}",
        drawn(
            [
                *(_marks(family, of, style) for family, of in families.items()),
                *_lines(results(of_kind(run.records, KIND))),
            ],
            "size of a message",
            "busbw, GB/s (higher is better)",
            xaxis={"type": "log", **byte_ticks(each.bytes for *_, each in messages)},
            yaxis={"type": "log", **log_ticks(each.busbw / 1e9 for *_, each in messages)},
        ),
        Sheet("", "", (*CASE, _OPERATION, *_MESSAGE), tuple(rows)),
        finding=f"Highest bus bandwidth: {_giga(most.busbw)} GB/s, at {bytes_text(most.bytes)}.",
        height=420,
    )


def _lines(alone: Sequence[Result]) -> Iterator[dict[str, Any]]:
    """A grey line for each operation and group that was measured alone."""
    for (op, among), same in grouped(alone, lambda each: (each.key.op, each.key.among)).items():
        points = sorted((each.key.bytes, each.busbw.value / 1e9) for each in same)
        yield scatter(
            f"{op} alone, {among}",
            [size for size, _ in points],
            [busbw for _, busbw in points],
            "lines",
            line={"color": GREY, "width": 1},
        )


def _marks(
    family: str, messages: Sequence[tuple[CaseSummary, str, Bandwidth]], style: Style
) -> dict[str, Any]:
    return scatter(
        family,
        [each.bytes for *_, each in messages],
        [each.busbw / 1e9 for *_, each in messages],
        hovers=[
            hover(
                row.case.name,
                f"{one_line(each.op)} of {bytes_text(each.bytes)} among {_place(each)}",
                f"busbw {_giga(each.busbw)} GB/s, median of {each.calls}",
            )
            for row, _, each in messages
        ],
        cases=[row.case.id for row, *_ in messages],
        marker=style.marker(family) | {"size": 8},
    )


def _place(of: Bandwidth) -> str:
    return f"{of.group_size} ranks" + (f" on {of.nodes} nodes" if of.nodes > 1 else "")


def _exposed(run: AnalysedRun) -> Iterator[Chart]:
    shown = Shown.of(run, _communicating)
    if not shown.items:
        return
    rows = [Row({**case_cells(row.case, name), **shares}) for row, name, shares in shown.items]
    times = [Row({**case_cells(row.case, name), **_times(row, of)}) for row, name, of in shown.items]
    fields = tuple(replace(each, unit="s", format=None) for each in _EXPOSURE)
    timed = Sheet("", "", (*CASE, *fields), tuple(times))
    labels = {"exposed": "exposed", "hidden": "hidden by computation"}
    axis = Rows.of((row, name) for row, name, _ in shown.items)
    yield Chart(
        "communication-exposed",
        "Exposed communication",
        "Time of a step in which a rank communicates: its share of a profiled step (mean over ranks) "
        "times the step time without the profiler. What no computation hides costs time, lower is "
        f"better; what is hidden costs little on a GPU.{shown.left_out}",
        drawn(
            bars(timed, labels, COMMUNICATION, 1e-3, places=axis.places),
            "ms of a step (exposed: lower is better)",
            rows=axis.labels,
            barmode="stack",
        ),
        Sheet("", "", (*CASE, *_EXPOSURE), tuple(rows)),
    )


def _times(row: CaseSummary, shares: dict[str, float]) -> dict[str, float]:
    """Seconds in a step without the profiler."""
    return {name: share * row.values["step_s"].value for name, share in shares.items()}


def _communicating(row: CaseSummary) -> dict[str, float] | None:
    """Shares of a profiled step with exposed and with hidden communication; None if not known."""
    step, comm, exposed = (row.values.get(f"{name}_s") for name in ("profile_step", "comm", "comm_exposed"))
    if step is None or comm is None or exposed is None or step.value <= 0 or comm.value <= 0:
        return None
    if "step_s" not in row.values:
        return None
    hidden = max(0.0, comm.value - exposed.value)
    return {"exposed": exposed.value / step.value, "hidden": hidden / step.value}
