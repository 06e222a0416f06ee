"""The view ``communication``: what moved between ranks, how long it took, and why so much."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from distbench.analysis.communication import Bandwidth, Traffic, bandwidths, traffic
from distbench.analysis.run import AnalysedRun
from distbench.analysis.summary import CaseSummary
from distbench.analysis.text import one_line
from distbench.analysis.volume import SCALAR, Volume, explanation, volume
from distbench.report.figures import (
    Chart,
    Shown,
    Style,
    bars,
    bars_height,
    bars_of,
    drawn,
    hover,
    safe,
    scatter,
)
from distbench.report.sheet import PERCENT, Cell, Field, Row, Sheet
from distbench.report.view import CASE, View, case_cells
from distbench.units import bytes_text

_MIB = 2**20
_MOST_OPERATIONS = 8
_HALF = 0.2
_NO_BANDWIDTH = "too small to say anything of bandwidth"


def _giga(value: float) -> str:
    return f"{value / 1e9:.3g}"


_BUSBW = Field(
    "busbw", "busbw", "Bus bandwidth: algbw times nccl-tests' factor.", "B/s", "higher", format=_giga
)
_VOLUME = (
    *CASE,
    Field("op", "collective", "Operation as asked for.", type="varchar"),
    Field("measured", "measured", "Payload per step.", "B", "lower"),
    Field("theory", "theory", "Payload per step that the strategy's model gives.", "B", "lower"),
)
_MESSAGES = (
    *CASE,
    Field("op", "collective", "Operation as asked for.", type="varchar"),
    Field("group_size", "ranks", "Ranks of the process group.", type="bigint"),
    Field("bytes", "message", "Payload of one call.", "B"),
    Field("busbw", "busbw, GB/s", "Median over the calls.", "B/s", "higher", format=_giga),
    Field("calls", "calls", "Calls of this size.", type="bigint"),
)
_EXPOSURE = (
    *CASE,
    Field("exposed", "exposed", "Share of a profiled step.", "", "lower", format=PERCENT),
    Field("hidden", "hidden", "Share of a profiled step.", format=PERCENT),
)


class CommunicationView(View):
    """What moved between ranks, how long it took, and why so much."""

    title: ClassVar[str] = "Communication"
    place: ClassVar[int] = 50
    caption: ClassVar[str] = (
        "One step of a rank, mean over ranks and profiled steps, by kind of collective, with its number "
        "of calls. payload: the full array of each, as asked for; wire: what a rank sends, by the "
        "algorithm that the backend ran; transfer: the shortest time of any rank of the group; wait: the "
        "rest, waiting for the slowest; exposed: not hidden by computation; algbw, busbw: GB/s as "
        "nccl-tests defines them, from payload and transfer. Lower is better, except for those two. On a "
        "CPU, gloo's threads share the cores with the computation: hidden communication still slows it "
        "down, and busbw is that of memory."
    )
    fields: ClassVar[tuple[Field, ...]] = (
        *(replace(each, heading="") for each in CASE),
        Field("op", "collective", "Operation as asked for by the strategy.", type="varchar"),
        Field("dtype", "", "Dtype of what it moves.", type="varchar"),
        Field("group_size", "", "Ranks of the process group.", type="bigint"),
        Field("calls", "", "Calls per step."),
        Field("bytes", "payload", "Payload per step, by nccl-tests' convention: full arrays.", "B", "lower"),
        Field("wire_bytes", "wire", "What a rank sends per step, by the algorithm that ran.", "B", "lower"),
        Field("transfer_s", "transfer", "Shortest time of any rank of the group, per step.", "s", "lower"),
        Field("wait_s", "wait", "The rest: waiting for the slowest rank.", "s", "lower"),
        Field("exposed_s", "exposed", "Time that no computation hides.", "s", "lower"),
        Field("algbw", "algbw", "Algorithm bandwidth: payload over transfer.", "B/s", "higher", format=_giga),
        _BUSBW,
    )

    def sheet(self, run: AnalysedRun) -> Sheet:
        """A row for each kind of collective of each case."""
        profiled = [row for row in run.cases if row.detail]
        names = run.names(profiled)
        details = [(row, names[row.case.id], row.detail) for row in profiled if row.detail]
        rows = [_row(row, name, kind) for row, name, detail in details for kind in traffic(detail)]
        return self.made(
            rows, [f"{name}: {why}" for _, name, detail in details if (why := explanation(detail))]
        )

    def charts(self, run: AnalysedRun) -> list[Chart]:
        """Volume against theory, bandwidth over message size, and what is exposed."""
        return [*_volumes(run), *_bandwidths(run), *_exposed(run)]


def _row(row: CaseSummary, name: str, kind: Traffic) -> Row:
    dtype = kind.dtype.replace("float", "fp").replace("bfp", "bf")
    # a norm or a flag says nothing of bandwidth
    tells = kind.bytes > SCALAR
    return Row(
        {
            **case_cells(row.case),
            "op": Cell(kind.op, one_line(f"{kind.calls:g} {kind.op} {dtype}")),
            "dtype": kind.dtype,
            "group_size": kind.group_size,
            "calls": kind.calls,
            "bytes": kind.bytes,
            "wire_bytes": kind.wire_bytes,
            "transfer_s": kind.transfer_s,
            "wait_s": kind.wait_s,
            "exposed_s": kind.exposed_s,
            "algbw": kind.algbw if tells else Cell(None, reason=_NO_BANDWIDTH),
            "busbw": kind.busbw if tells else Cell(None, reason=_NO_BANDWIDTH),
        },
        group=name,
    )


def _volumes(run: AnalysedRun) -> list[Chart]:
    volumes = {row.case.id: each for row in run.cases if row.detail and (each := volume(row.detail))}
    moved = [row for row in run.cases if row.case.id in volumes and _operations([volumes[row.case.id]])]
    if not moved:
        return []
    shown = Shown.of(moved, run)
    found = [volumes[row.case.id] for row in shown.rows]
    traces: list[dict[str, Any]] = []
    for i, op in enumerate(_operations(found)[:_MOST_OPERATIONS]):
        for what, offset, look in (("measured", -_HALF, 1.0), ("theory", _HALF, 0.45)):
            sizes = [(each.measured if offset < 0 else each.theory).get(op) for each in found]
            traces.append(_volume(f"{one_line(op)}, {what}", sizes, offset, i) | {"opacity": look})
            traces[-1]["customdata"] = [row.case.id for row in shown.rows]
    rows = [
        Row(
            {
                **case_cells(row.case, shown.names[row.case.id]),
                "op": op,
                "measured": _size(of.measured.get(op)),
                "theory": _size(of.theory.get(op)),
            }
        )
        for row, of in zip(shown.rows, found, strict=True)
        for op in _operations([of])
    ]
    return [
        Chart(
            "communication-volume",
            "Volume by collective",
            "Payload of a rank per step: the upper bar of each pair is measured, the lower and paler one is "
            "the theory for its strategy. Lower is better; the notes below say why they "
            f"differ.{shown.left_out}",
            drawn(
                traces, "MiB per step (lower is better)", "", barmode="stack", yaxis=shown.axis(shown.rows)
            ),
            Sheet("", "", _VOLUME, tuple(rows)),
            height=bars_height(len(found)) + 10 * len(found),
        )
    ]


def _volume(name: str, sizes: Sequence[float | None], offset: float, i: int) -> dict[str, Any]:
    places = [place + offset for place in range(len(sizes))]
    return bars(
        safe(name),
        places,
        [None if size is None else size / _MIB for size in sizes],
        i,
        width=0.36,
        hovertext=[f"{safe(name)}: {_size(size).text or bytes_text(size or 0)}" for size in sizes],
        hoverinfo="text",
    )


def _size(size: float | None) -> Cell:
    return Cell(size, "none" if size is None else "")


def _operations(volumes: Sequence[Volume]) -> list[str]:
    """The operations by the bytes that they move or should, most first."""
    sums: dict[str, float] = {}
    for each in volumes:
        for op, size in (*each.measured.items(), *each.theory.items()):
            sums[op] = sums.get(op, 0.0) + size
    return sorted((op for op, size in sums.items() if size), key=lambda op: -sums[op])


def _bandwidths(run: AnalysedRun) -> list[Chart]:
    shown = Shown.of([row for row in run.cases if row.detail], run)
    found = [
        (row, each)
        for row in shown.rows
        if row.detail
        for each in bandwidths(row.detail)
        if each.bytes > SCALAR
    ]
    if not found:
        return []
    style = Style.of(run.cases)
    families = dict.fromkeys(row.case.strategy.name for row, _ in found)
    marks = [_marks(f, [each for each in found if each[0].case.strategy.name == f], style) for f in families]
    most = max(found, key=lambda each: each[1].busbw)
    log = {"type": "log", "dtick": "D2"}
    messages = [_message(row, shown.names[row.case.id], each) for row, each in found]
    return [
        Chart(
            "communication-busbw",
            "Bus bandwidth against message size",
            "Each mark is one kind of collective of one case at one message size: bus bandwidth as nccl-"
            "tests defines it, the median over its calls, higher is better. Both axes are logarithmic: where "
            f"marks fall to the left, messages are too small for the link.{shown.left_out}",
            drawn(marks, "bytes of a message", "busbw, GB/s (higher is better)", xaxis=log, yaxis=log),
            Sheet("", "", _MESSAGES, tuple(messages)),
            finding=f"Highest bus bandwidth: {_giga(most[1].busbw)} GB/s, at {bytes_text(most[1].bytes)}.",
        )
    ]


def _message(row: CaseSummary, name: str, of: Bandwidth) -> Row:
    columns = ("op", "group_size", "bytes", "busbw", "calls")
    return Row({**case_cells(row.case, name), **{column: getattr(of, column) for column in columns}})


def _marks(family: str, found: Sequence[tuple[CaseSummary, Bandwidth]], style: Style) -> dict[str, Any]:
    return scatter(
        family,
        [each.bytes for _, each in found],
        [each.busbw / 1e9 for _, each in found],
        hovers=[
            hover(
                row.case.name,
                f"{one_line(each.op)} of {bytes_text(each.bytes)} among {each.group_size} ranks",
                f"busbw {_giga(each.busbw)} GB/s, median of {each.calls}",
            )
            for row, each in found
        ],
        cases=[row.case.id for row, _ in found],
        marker=style.marker(family) | {"size": 8},
    )


def _exposed(run: AnalysedRun) -> list[Chart]:
    known = {row.case.id: shares for row in run.cases if (shares := _communicating(row))}
    if not known:
        return []
    shown = Shown.of([row for row in run.cases if row.case.id in known], run)
    rows = [
        Row({**case_cells(row.case, shown.names[row.case.id]), **known[row.case.id]}) for row in shown.rows
    ]
    sheet = Sheet("", "", _EXPOSURE, tuple(rows))
    traces = bars_of(sheet, {"exposed": "exposed", "hidden": "hidden by computation"})
    layout = {"barmode": "stack", "xaxis": {"tickformat": ".0%"}, "yaxis": shown.axis(shown.rows)}
    return [
        Chart(
            "communication-exposed",
            "Exposed communication",
            "Share of a profiled step in which a rank communicates (mean over ranks): what no computation "
            f"hides costs time, lower is better; what is hidden costs little on a GPU.{shown.left_out}",
            drawn(traces, "share of a step (exposed: lower is better)", "", **layout),
            sheet,
            height=bars_height(len(rows)),
        )
    ]


def _communicating(row: CaseSummary) -> dict[str, float]:
    """Shares of a profiled step with exposed and with hidden communication; empty if not known."""
    step, comm, exposed = (row.values.get(f"{name}_s") for name in ("profile_step", "comm", "comm_exposed"))
    if step is None or comm is None or exposed is None or step.value <= 0 or comm.value <= 0:
        return {}
    hidden = max(0.0, comm.value - exposed.value)
    return {"exposed": exposed.value / step.value, "hidden": hidden / step.value}
