"""Charts of the view ``communication``: volume, mesh dimensions, bandwidth, and what is exposed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from distbench.analysis.case_summary import CaseSummary
from distbench.analysis.mesh_dimensions import (
    DimensionTraffic,
    dimension_traffic,
)
from distbench.analysis.run import RunAnalysis
from distbench.analysis.wire_traffic import WireTraffic, wire_traffic
from distbench.core.text import one_line
from distbench.core.units import format_bytes, format_value
from distbench.tables.table import PERCENT, Field, Table, TableCell, TableRow
from distbench.views._bandwidth_chart import bandwidth_chart
from distbench.views.base import CASE_FIELDS, OPERATION, case_cells
from distbench.views.charts.figures import (
    Bar,
    CaseAxis,
    Chart,
    ChartSelection,
    make_figure,
    stacked_bars,
)
from distbench.views.charts.palette import COMMUNICATION, collective_color, dimension_color

_MIB = 2**20
_MAX_OPERATIONS = 8
_PAIRED_BARS = (("measured", -0.2, 1.0), ("theory", 0.2, 0.45))
"""Bars of an operation: the attribute of its volume, the offset from its case's position, and the opacity."""
_VOLUME = (
    Field("measured", "measured", "Bytes that a rank sends per step.", "B", "lower"),
    Field("theory", "theory", "The same by the strategy's communication model.", "B", "lower"),
)
_EXPOSURE = (
    Field("exposed", "exposed", "Share of a profiled step.", "", "lower", format=PERCENT),
    Field("hidden", "hidden", "Share of a profiled step.", format=PERCENT),
)
_DIMENSION = (
    Field("dimension", "over", "Dimension of the device mesh.", type="varchar"),
    OPERATION,
    Field("calls", "calls", "Calls per step.", format="{:g}".format),
    Field(
        "calls_theory",
        "calls, theory",
        "Calls per step by the strategy's communication model.",
        format="{:g}".format,
    ),
    Field("sent", "sent", "Bytes that a rank sends per step.", "B", "lower"),
    Field("measured", "payload", "Payload per step.", "B", "lower"),
    Field(
        "theory", "payload, theory", "Payload per step by the strategy's communication model.", "B", "lower"
    ),
)
_NO_CALLS = "theory gives no number of calls"


def communication_charts(run: RunAnalysis) -> Iterator[Chart]:
    """Charts of volume, of traffic by mesh dimension, of bandwidth, and of exposed communication."""
    yield from _volume_chart(run)
    yield from _dimension_chart(run)
    yield from bandwidth_chart(run)
    yield from _exposure_chart(run)


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
        "Bytes that a rank sends per step: the upper bar of each pair is measured, the lower and paler one "
        "is the theory for its strategy. Lower is better; the notes below say why they "
        "differ.",
        make_figure(
            [trace for pair in pairs for trace in pair],
            "MiB per step (lower is better)",
            rows=axis.labels,
            barmode="stack",
        ),
        Table("", "", (*CASE_FIELDS, OPERATION, *_VOLUME), tuple(rows)),
        finding=_volume_finding(shown),
        height=130 + 36 * len(axis.labels),
        left_out=shown.truncation_note,
    )


def _volume_finding(shown: ChartSelection[WireTraffic]) -> str:
    """The case whose sent bytes are furthest from theory; empty if no theory is known."""
    known = [
        (sum(of.measured.values()), sum(of.theory.values()), name)
        for _, name, of in shown.items
        if of.measured and of.theory
    ]
    if not known:
        return ""
    measured, theory, name = max(known, key=lambda each: abs(each[0] - each[1]))
    return f"Furthest from theory: {name}, {format_bytes(measured)} sent (theory: {format_bytes(theory)})."


def _volume_of(row: CaseSummary) -> WireTraffic | None:
    moved = wire_traffic(row.representative_trial) if row.representative_trial else None
    return moved if moved and moved.measured is not None and _operations([moved]) else None


def _bars(
    shown: ChartSelection[WireTraffic],
    operations: Sequence[str],
    axis: CaseAxis,
    what: str,
    offset: float,
    opacity: float,
) -> list[dict[str, Any]]:
    """Bars of attribute *what* for each operation: one for each case."""
    bars = [Bar(row.case.name, row.case.id, getattr(of, what) or {}) for row, _, of in shown.items]
    return stacked_bars(
        bars,
        {op: f"{one_line(op)}, {what}" for op in operations},
        {op: collective_color(op) for op in operations},
        lambda _, size: "none" if size is None else format_bytes(size),
        _MIB,
        places=[place + offset for place in axis.positions],
        width=0.36,
        opacity=opacity,
    )


def _volume_cell(of: WireTraffic, what: str, op: str) -> TableCell:
    by_op: Mapping[str, float] | None = getattr(of, what)
    if by_op is None:
        return TableCell(None, reason="unknown")
    return TableCell(by_op.get(op), "" if op in by_op else "none")


def _operations(volumes: Sequence[WireTraffic]) -> list[str]:
    """Operations by the bytes that they move or should move, most first."""
    sums: dict[str, float] = {}
    for each in volumes:
        for op, size in (*(each.measured or {}).items(), *(each.theory or {}).items()):
            sums[op] = sums.get(op, 0.0) + size
    return sorted((op for op, size in sums.items() if size), key=lambda op: -sums[op])


def _dimension_chart(run: RunAnalysis) -> Iterator[Chart]:
    """Chart of the traffic, if any case has traffic over more than one dimension."""
    shown = ChartSelection.fastest(run, _traffic_by_dimension)
    if not shown.items:
        return
    axis = CaseAxis.of((row, name) for row, name, _ in shown.items)
    rows = [
        TableRow({**case_cells(row.case, name), **_traffic_cells(each)})
        for row, name, of in shown.items
        for each in of
    ]
    yield Chart(
        "communication-mesh",
        "Volume by mesh dimension",
        "Bytes that a rank sends per step, by the dimension of the device mesh over which they move: "
        "dp_replicate between copies of the model, dp_shard between its shards, tp inside its layers, "
        "pp between its stages. Lower is better; the inner dimensions (tp) need the fastest links. The "
        "table has each collective with its number of calls, next to theory.",
        make_figure(
            _dimension_bars(shown, axis), "MiB per step (lower is better)", rows=axis.labels, barmode="stack"
        ),
        Table("", "", (*CASE_FIELDS, *_DIMENSION), tuple(rows)),
        left_out=shown.truncation_note,
    )


def _traffic_by_dimension(row: CaseSummary) -> list[DimensionTraffic] | None:
    """Traffic over each dimension; None if there is only one, or they are unknown."""
    of = dimension_traffic(row.representative_trial) if row.representative_trial else []
    return of if len({each.dimension for each in of}) > 1 else None


def _traffic_cells(each: DimensionTraffic) -> dict[str, Any]:
    calls = TableCell(each.calls_theory, reason="" if each.calls_theory is not None else _NO_CALLS)
    return {
        "dimension": each.dimension,
        "op": each.op,
        "calls": each.calls,
        "calls_theory": calls,
        "sent": TableCell(each.sent, reason="" if each.sent is not None else "unknown"),
        "measured": each.measured,
        "theory": each.theory,
    }


def _dimension_bars(shown: ChartSelection[list[DimensionTraffic]], axis: CaseAxis) -> list[dict[str, Any]]:
    names = sorted({each.dimension for *_, of in shown.items for each in of})
    bars = [
        Bar(row.case.name, row.case.id, {over: _dimension_bytes(of, over) for over in names})
        for row, _, of in shown.items
    ]
    labels, colors = {over: over for over in names}, {over: dimension_color(over) for over in names}
    return stacked_bars(
        bars, labels, colors, lambda _, size: format_value(size, "B"), _MIB, places=axis.positions
    )


def _dimension_bytes(of: list[DimensionTraffic], over: str) -> float | None:
    sizes = [each.sent for each in of if each.dimension == over]
    return sum(filter(None, sizes)) if sizes and None not in sizes else None


def _exposure_chart(run: RunAnalysis) -> Iterator[Chart]:
    shown = ChartSelection.fastest(run, _exposure_shares)
    if not shown.items:
        return
    rows = [TableRow({**case_cells(row.case, name), **shares}) for row, name, shares in shown.items]
    bars = [Bar(row.case.name, row.case.id, _exposure_seconds(row, of)) for row, _, of in shown.items]
    labels = {"exposed": "exposed", "hidden": "hidden by computation"}
    axis = CaseAxis.of((row, name) for row, name, _ in shown.items)
    yield Chart(
        "communication-exposed",
        "Exposed communication",
        "Time of a step in which a rank communicates: its share of a profiled step (mean over ranks) "
        "times the step time without the profiler. Exposed communication costs time (lower is better); "
        "hidden communication costs little on a GPU.",
        make_figure(
            stacked_bars(
                bars, labels, COMMUNICATION, lambda _, time: format_value(time, "s"), 1e-3, axis.positions
            ),
            "ms of a step (exposed: lower is better)",
            rows=axis.labels,
            barmode="stack",
        ),
        Table("", "", (*CASE_FIELDS, *_EXPOSURE), tuple(rows)),
        left_out=shown.truncation_note,
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
