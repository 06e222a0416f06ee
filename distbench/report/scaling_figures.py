"""The charts of scaling: throughput, efficiency, and where the efficiency goes. Strong and weak apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distbench.analysis.losses import Budget, budget
from distbench.analysis.scaling import DEFINITIONS, Kind, Series
from distbench.report.figures import (
    GREY,
    MOST_CASES,
    Chart,
    Style,
    bars,
    bars_height,
    drawn,
    hover,
    rows_axis,
    safe,
)
from distbench.units import number_text

_PARTS = (
    ("as on one device", "efficiency"),
    ("exposed transfer", "transfer"),
    ("waiting for slower ranks", "waiting"),
    ("more work of a device", "work"),
)
_BUDGET = (
    "Each bar is the time that a device is held in a step. The first part is the efficiency: what one device "
    "alone would have done in it. Then what is lost: communication that no computation hides, taken apart "
    "into the transfer itself and waiting for slower ranks (imbalance), and the rest: devices that compute, "
    "but for longer than the same work takes on one device alone. The parts add up to 100 %; where devices "
    "together compute for less than one alone, the last is negative and drawn to the left of 0."
)


def charts(series: Sequence[Series], style: Style) -> list[Chart]:
    """Return the charts of each kind of scaling that was measured."""
    found = []
    for kind in DEFINITIONS:
        if same := [each for each in series if each.kind == kind]:
            found += [_throughput(kind, same, style), _efficiency(kind, same, style)]
    return found + _losses(series)


def _throughput(kind: Kind, series: Sequence[Series], style: Style) -> Chart:
    shown = _shown(series)
    best = max(series, key=lambda each: each.points[0].throughput.value)
    ideal = [size * best.points[0].throughput.value for size in _sizes(series)]
    return Chart(
        f"scaling-{kind}-throughput",
        f"{kind.capitalize()} scaling: throughput",
        "tokens/s of all devices together, higher is better; bars are the range over trials. The grey line "
        f"is ideal: {best.name} on one device, times the number of devices." + _left_out(series),
        _chart(
            [
                *(_line(each, i, style, "throughput") for i, each in enumerate(shown)),
                _ideal(_sizes(series), ideal),
            ],
            series,
            "tokens/s (higher is better)",
        ),
        ["series", "devices", "tokens/s", "lowest", "highest", "trials"],
        [
            [each.name, str(point.world_size), *(number_text(v) for v in (x.value, x.low, x.high)), str(x.n)]
            for each in series
            for point in each.points
            for x in [point.throughput]
        ],
    )


def _efficiency(kind: Kind, series: Sequence[Series], style: Style) -> Chart:
    lowest = min((point for each in series for point in each.points), key=lambda point: point.efficiency)
    return Chart(
        f"scaling-{kind}-efficiency",
        f"{kind.capitalize()} scaling: efficiency",
        f"Higher is better; the grey line at 1 is ideal. {DEFINITIONS[kind]} Bars: the slowest trial against "
        "the fastest on one device, and the other way round." + _left_out(series),
        _chart(
            [
                *(_line(each, i, style, "efficiency") for i, each in enumerate(_shown(series))),
                _ideal(_sizes(series), [1.0 for _ in _sizes(series)]),
            ],
            series,
            "efficiency (higher is better)",
        ),
        ["series", "devices", "tokens/s", "efficiency", "lowest", "highest"],
        [
            [each.name, str(point.world_size), number_text(point.throughput.value)]
            + [f"{value:.3f}" for value in (point.efficiency, point.low, point.high)]
            for each in series
            for point in each.points
        ],
        told=f"The lowest is {lowest.efficiency:.2f}, on {lowest.world_size} devices.",
    )


def _line(series: Series, i: int, style: Style, what: str) -> dict[str, Any]:
    family, points = series.case.strategy.name, series.points
    if what == "efficiency":
        numbers = [(point.low, point.efficiency, point.high) for point in points]
    else:
        numbers = [(x.low, x.value, x.high) for x in (point.throughput for point in points)]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": safe(series.name),
        "x": [point.world_size for point in points],
        "y": [value for _, value, _ in numbers],
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [high - value for _, value, high in numbers],
            "arrayminus": [value - low for low, value, _ in numbers],
            "width": 3,
            "thickness": 1,
        },
        "customdata": [point.row.case.id for point in points],
        "line": style.line(family, i),
        "marker": style.marker(family) | {"size": 9},
    }


def _ideal(sizes: list[int], values: list[float]) -> dict[str, Any]:
    line = {"color": GREY, "width": 1}
    return {"type": "scatter", "mode": "lines", "name": "ideal", "x": sizes, "y": values, "line": line}


def _chart(traces: list[dict[str, Any]], series: Sequence[Series], y: str) -> dict[str, Any]:
    axis = {"tickvals": _sizes(series)}
    return drawn(traces, "world size (devices)", y, xaxis=axis, yaxis={"rangemode": "tozero"})


def _losses(series: Sequence[Series]) -> list[Chart]:
    several = [(each, point) for each in series for point in each.points if point.world_size > 1]
    found = [(each, point, of) for each, point in several if isinstance(of := budget(point), Budget)]
    if not found:
        return []
    found.sort(key=lambda each: (each[1].world_size, -each[1].efficiency))
    names = [f"{each.name}/ws{point.world_size}" for each, point, _ in found]
    drawn_of = found[:MOST_CASES]
    places = range(len(drawn_of))
    traces = [
        bars(
            label,
            places,
            [getattr(of, part) for _, _, of in drawn_of],
            i,
            hovertext=[
                hover(name, f"{label}: {getattr(of, part):.1%}")
                for name, (_, _, of) in zip(names, drawn_of, strict=False)
            ],
            hoverinfo="text",
            customdata=[point.row.case.id for _, point, _ in drawn_of],
        )
        for i, (label, part) in enumerate(_PARTS)
    ]
    cut = f" Drawn are {MOST_CASES} of {len(found)}." if len(found) > MOST_CASES else ""
    layout = {"barmode": "relative", "xaxis": {"tickformat": ".0%"}, "yaxis": rows_axis(names[:MOST_CASES])}
    return [
        Chart(
            "scaling-losses",
            "Where the efficiency goes",
            _BUDGET + cut,
            drawn(traces, "share of device time", "", **layout),
            ["series", "devices", *(label for label, _ in _PARTS)],
            [
                [each.name, str(point.world_size), *(f"{getattr(of, part):.1%}" for _, part in _PARTS)]
                for each, point, of in found
            ],
            height=bars_height(len(drawn_of)),
        )
    ]


def _sizes(series: Sequence[Series]) -> list[int]:
    return sorted({point.world_size for each in series for point in each.points})


def _shown(series: Sequence[Series]) -> Sequence[Series]:
    return sorted(series, key=lambda each: -each.points[-1].throughput.value)[:MOST_CASES]


def _left_out(series: Sequence[Series]) -> str:
    return f" Drawn are the {MOST_CASES} fastest of {len(series)}." if len(series) > MOST_CASES else ""
