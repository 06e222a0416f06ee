"""The view ``scaling``: throughput, efficiency, and where the efficiency goes. Strong and weak apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from distbench.analysis.inter_node import (
    NODE_EFFICIENCY_DEFINITION,
    NodeEfficiency,
    node_count,
    node_efficiency,
)
from distbench.analysis.run import RunAnalysis
from distbench.analysis.scaling import (
    SCALING_DEFINITIONS,
    EfficiencyBreakdown,
    ScalingKind,
    ScalingPoint,
    ScalingSeries,
    efficiency_breakdown,
    fastest_series,
)
from distbench.analysis.wording.findings import node_efficiency_sentence
from distbench.core.units import format_count, format_number
from distbench.tables.table import PERCENT, Field, Table, TableCell, TableRow
from distbench.views.base import View
from distbench.views.charts.figures import (
    GREY,
    MAX_CHART_CASES,
    Bar,
    CaseStyle,
    Chart,
    error_bars,
    make_figure,
    reference_line,
    scatter,
    stacked_bars,
)
from distbench.views.charts.labels import LineEnd, label_line_ends, range_with_label_space
from distbench.views.charts.palette import EFFICIENCY

_PLOT = 250
"""Approximate height of the plot in CSS pixels."""
_NODE_HEADINGS = {"nodes": "nodes", "inside": "in a node", "between": "over nodes"}
"""Headings of columns shown only if a series spans several nodes."""
_PARTS = {
    "efficiency": "as on one device",
    "transfer": "exposed transfer",
    "waiting": "waiting for slower ranks",
    "work": "extra compute per device",
}
_BREAKDOWN_CAPTION = (
    "Each bar is the device time of a step. The first part is the efficiency: the device time that one "
    "device alone would need for the same work. The other parts are losses: exposed communication, "
    "split into transfer and waiting for slower ranks (imbalance), and extra compute: devices compute "
    "for longer than one device alone would for the same work. The parts add up to 100%; if devices "
    "together compute for less time than one alone, the last part is negative and drawn to the left of "
    "0."
)


def _speed(name: str, heading: str, doc: str) -> Field:
    return Field(name, heading, doc, "tokens/s", "higher", format=format_number)


def _ratio(name: str, heading: str, doc: str) -> Field:
    return Field(name, heading, doc, "", "higher", format="{:.3f}".format)


class ScalingView(View):
    """A row for each series and number of devices; charts of each kind of scaling, and of what is lost."""

    title = "Scaling"
    order = 20
    table_in_charts = True
    caption = (
        "transfer, waiting, work: shares of device time lost to exposed transfer, to waiting for slower "
        "ranks and to extra compute; with the efficiency they add up to 100%. fastest: the fastest case on "
        "each number of devices, whatever its strategy; X₁ is that of the fastest on one device."
    )
    fields = (
        Field("series", "series", "Strategy, with the options that distinguish series.", type="varchar"),
        Field("case_name", "", "Name of the case.", type="varchar"),
        Field("case_id", "", "Id of the case.", type="varchar"),
        Field("kind", "", "strong: fixed global batch; weak: fixed batch per device.", type="varchar"),
        Field("devices", "devices", "World size.", type="bigint"),
        _speed("tokens_per_s", "tokens/s", "Of all devices together, mean over trials."),
        _speed("lowest", "lowest", "Slowest trial."),
        _speed("highest", "highest", "Fastest trial."),
        Field("trials", "trials", "Trials.", type="bigint"),
        _ratio("efficiency", "efficiency", "Scaling efficiency."),
        _ratio("efficiency_low", "low", "Lower end of its 95% interval."),
        _ratio("efficiency_high", "high", "Upper end of its 95% interval."),
        Field("nodes", "", "Nodes that the ranks were on.", type="bigint"),
        _ratio("inside", "", "Efficiency of one whole node."),
        _ratio("between", "", "Throughput of its nodes together, relative to the sum of each alone."),
        _ratio("between_low", "", "Lower end of its 95% interval."),
        _ratio("between_high", "", "Upper end of its 95% interval."),
        Field("transfer", "transfer", "Exposed transfer.", "", "lower", format=PERCENT),
        Field("waiting", "waiting", "Exposed waiting for slower ranks.", "", "lower", format=PERCENT),
        Field("work", "work", "Extra compute per device.", "", "lower", format=PERCENT),
    )

    def table(self, run: RunAnalysis) -> Table:
        series = _series(run)
        rows = [_row(each, point) for each in series for point in each.points]
        notes = [] if rows else ["No case was measured both on one device and on more; add 1 to world_sizes."]
        kinds = {each.kind for each in series}
        defined = [text for kind, text in SCALING_DEFINITIONS.items() if kind in kinds]
        caption = " ".join([*defined, self.caption])
        if any(node_count(point) > 1 for each in series for point in each.points):
            return self._with_node_columns(rows, caption)
        return self.make_table(rows, notes, caption)

    def _with_node_columns(self, rows: Sequence[TableRow], caption: str) -> Table:
        """Table with the columns that only apply to several nodes."""
        made = self.make_table(rows, caption=f"{caption} {NODE_EFFICIENCY_DEFINITION}")
        fields = tuple(
            replace(each, heading=_NODE_HEADINGS.get(each.name, each.heading)) for each in made.fields
        )
        return replace(made, fields=fields)

    def charts(self, run: RunAnalysis) -> Iterator[Chart]:
        style = CaseStyle.for_cases(run.cases)
        for kind in SCALING_DEFINITIONS:
            if series := [each for each in _series(run) if each.kind == kind]:
                table = self.make_table([_row(each, point) for each in series for point in each.points])
                yield _throughput(kind, series, style, table)
                yield _efficiency(kind, series, style, table)
        yield from self._breakdown_charts(_series(run))

    def _breakdown_charts(self, scaling: Sequence[ScalingSeries]) -> Iterator[Chart]:
        known = [
            (each, point, parts)
            for each in scaling
            for point in each.points
            if point.world_size > 1 and isinstance(parts := efficiency_breakdown(point), EfficiencyBreakdown)
        ]
        if not known:
            return
        known.sort(key=lambda item: (item[1].world_size, -item[1].efficiency))
        columns = {each.name: each for each in self.fields}
        bars = [
            Bar(each.name, point.row.case.id, vars(parts)) for each, point, parts in known[:MAX_CHART_CASES]
        ]
        cut = (
            f"Only the first {MAX_CHART_CASES} of {len(known)} are shown."
            if len(known) > MAX_CHART_CASES
            else ""
        )
        yield Chart(
            "scaling-losses",
            "Where the efficiency goes",
            _BREAKDOWN_CAPTION,
            make_figure(
                stacked_bars(bars, _PARTS, EFFICIENCY, lambda part, share: columns[part].text(share)),
                "share of device time",
                rows=[f"{each.name}/ws{point.world_size}" for each, point, _ in known[:MAX_CHART_CASES]],
                barmode="relative",
                xaxis={"tickformat": ".0%"},
            ),
            self.make_table([_row(each, point) for each, point, _ in known]).select_columns(
                "series", "devices", *_PARTS
            ),
            left_out=cut,
        )


def _series(run: RunAnalysis) -> list[ScalingSeries]:
    return [*run.scaling, *fastest_series(run.cases)]


def _row(series: ScalingSeries, point: ScalingPoint) -> TableRow:
    speed, lost = point.throughput, efficiency_breakdown(point)
    if isinstance(lost, EfficiencyBreakdown):
        parts: dict[str, Any] = vars(lost)
    else:
        parts = dict.fromkeys(("transfer", "waiting", "work"), TableCell(None, reason=lost))
    return TableRow(
        {
            "series": series.name,
            "case_name": point.row.case.name,
            "case_id": point.row.case.id,
            "kind": series.kind,
            "devices": point.world_size,
            "tokens_per_s": TableCell(speed.value, speed.text),
            "lowest": speed.low,
            "highest": speed.high,
            "trials": speed.trial_count,
            "efficiency": point.efficiency,
            "efficiency_low": point.low,
            "efficiency_high": point.high,
            **parts,
            "nodes": node_count(point),
            **_node_cells(node_efficiency(series, point)),
        }
    )


def _node_cells(found: NodeEfficiency | str) -> dict[str, float | TableCell]:
    if isinstance(found, str):
        return dict.fromkeys(
            ("inside", "between", "between_low", "between_high"), TableCell(None, reason=found)
        )
    ends = {"between_low": found.across_low, "between_high": found.across_high}
    return {"inside": found.within_node, "between": found.across_nodes, **ends}


def _throughput(kind: ScalingKind, series: Sequence[ScalingSeries], style: CaseStyle, sheet: Table) -> Chart:
    best = max(series, key=lambda each: each.points[0].throughput.value)
    alone = best.points[0].throughput.value
    return Chart(
        f"scaling-{kind}-throughput",
        f"{kind.capitalize()} scaling: throughput",
        "tokens/s of all devices together, higher is better; bars are 95% intervals. The grey line "
        f"is ideal: {best.name} on one device, times the number of devices.",
        _lines(
            series,
            style,
            lambda point: (point.throughput.bounds[0], point.throughput.value, point.throughput.bounds[1]),
            lambda size: size * alone,
            "tokens/s (higher is better)",
        ),
        sheet.select_columns("series", "devices", "tokens_per_s", "lowest", "highest", "trials"),
        left_out=_left_out(series),
    )


def _efficiency(kind: ScalingKind, series: Sequence[ScalingSeries], style: CaseStyle, sheet: Table) -> Chart:
    points = [(point.efficiency, each.name, point.world_size) for each in series for point in each.points]
    lowest, name, size = min(points)
    least = f"Lowest efficiency: {lowest:.2f} ({name} on {format_count(size, 'device')})."
    return Chart(
        f"scaling-{kind}-efficiency",
        f"{kind.capitalize()} scaling: efficiency",
        f"Higher is better; the grey line at 1 is ideal. {SCALING_DEFINITIONS[kind]} Bars are 95% intervals.",
        _lines(
            series,
            style,
            lambda point: (point.low, point.efficiency, point.high),
            lambda _: 1.0,
            "efficiency (higher is better)",
        ),
        sheet.select_columns(
            "series", "devices", "tokens_per_s", "efficiency", "efficiency_low", "efficiency_high"
        ),
        finding=f"{least} {node_efficiency_sentence(series)}".rstrip(),
        left_out=_left_out(series),
    )


def _lines(
    series: Sequence[ScalingSeries],
    style: CaseStyle,
    numbers: Callable[[ScalingPoint], tuple[float, float, float]],
    ideal: Callable[[int], float],
    y: str,
) -> dict[str, Any]:
    """Line for each of the fastest *series*; *numbers* are the lowest, the value and the highest."""
    fastest = sorted(series, key=lambda each: -each.points[-1].throughput.value)[:MAX_CHART_CASES]
    sizes = sorted({point.world_size for each in series for point in each.points})
    lines = [
        scatter(
            each.name,
            [point.world_size for point in each.points],
            [numbers(point)[1] for point in each.points],
            "lines+markers",
            cases=[point.row.case.id for point in each.points],
            error_y=error_bars([numbers(point) for point in each.points]),
            line=style.line(each.case.strategy.name, i),
            marker=style.marker(each.case.strategy.name) | {"size": 9},
        )
        for i, each in enumerate(fastest)
    ]
    ideals = [ideal(size) for size in sizes]
    highest = 1.08 * max([*ideals, *(numbers(point)[2] for each in fastest for point in each.points)])
    ends = [_line_end(each, style, numbers) for each in fastest]
    return make_figure(
        [*lines, reference_line(sizes, ideals, "ideal")],
        "world size (devices)",
        y,
        xaxis={"tickvals": sizes, "range": range_with_label_space(sizes[0], sizes[-1])},
        yaxis={"range": [0, highest]},
        annotations=label_line_ends(
            [*ends, LineEnd(sizes[-1], ideals[-1], "ideal", GREY)], 0, highest, _PLOT
        ),
        showlegend=False,
    )


def _line_end(
    series: ScalingSeries, style: CaseStyle, numbers: Callable[[ScalingPoint], tuple[float, float, float]]
) -> LineEnd:
    last = series.points[-1]
    return LineEnd(
        last.world_size, numbers(last)[1], series.name, style.marker(series.case.strategy.name)["color"]
    )


def _left_out(series: Sequence[ScalingSeries]) -> str:
    return (
        f"Only the {MAX_CHART_CASES} fastest of {len(series)} are shown."
        if len(series) > MAX_CHART_CASES
        else ""
    )
