"""Offline page of the extrapolation of a run: scaling charts with measured and predicted points."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from distbench.analysis.case_summary import THROUGHPUT, CaseSummary
from distbench.analysis.extrapolation import ExtrapolatedPoint, ExtrapolatedSeries
from distbench.core.units import format_count, format_number
from distbench.record.run_folder import RunInfo
from distbench.report import html
from distbench.report.html import Chapter
from distbench.system.files import infrastructure_errors, write_atomic
from distbench.tables.table import Table
from distbench.views.charts.figures import (
    MAX_CHART_CASES,
    Chart,
    error_bars,
    hover,
    log_ticks,
    make_figure,
    reference_line,
    scatter,
)
from distbench.views.charts.palette import STRATEGIES, faded

_MARKS = (
    "Filled circles are measured; open diamonds on dashed lines are predicted, in a paler colour, with the "
    "interval that should contain 90 % of measurements."
)
_Scale = Callable[[ExtrapolatedSeries, int], float]
"""Factor of the tokens/s of a series on a number of devices."""


def write(info: RunInfo, series: Sequence[ExtrapolatedSeries], table: Table, file: Path) -> None:
    """Write the page of *series* of the run *info*, with their *table*, to *file*.

    Raises:
        InfrastructureError: the file can't be written.
    """
    chapter = Chapter("extrapolation", "Measured and predicted", [*_charts(series)], table)
    page = html.render("extrapolation.html", [chapter], info=info)
    with infrastructure_errors(file):
        write_atomic(file, page)


def _charts(series: Sequence[ExtrapolatedSeries]) -> Iterator[Chart]:
    shown = sorted(series, key=lambda each: -each.tokens_per_s_of_device)[:MAX_CHART_CASES]
    if not shown:
        return
    fastest = shown[0]
    measured_on = format_count(fastest.anchor.case.world_size, "device")
    left_out = (
        f"Only the {MAX_CHART_CASES} fastest of {len(series)} are shown." if len(series) > len(shown) else ""
    )
    yield Chart(
        "extrapolation-throughput",
        "Throughput",
        f"tokens/s of all devices together, higher is better; both axes are logarithmic. {_MARKS} The grey "
        f"line is ideal: {fastest.name} as fast on each device as it was on {measured_on}.",
        _figure(
            shown,
            lambda *_: 1.0,
            lambda size: size * fastest.tokens_per_s_of_device,
            "tokens/s (higher is better)",
            is_logarithmic=True,
        ),
        left_out=left_out,
    )
    yield Chart(
        "extrapolation-efficiency",
        "Efficiency",
        "tokens/s of a device over those of a device on the most measured devices, higher is better. "
        f"{_MARKS} The grey line at 1 is ideal.",
        _figure(
            shown,
            lambda each, size: 1 / (size * each.tokens_per_s_of_device),
            lambda _: 1.0,
            "efficiency (higher is better)",
        ),
        left_out=left_out,
    )


def _figure(
    series: Sequence[ExtrapolatedSeries],
    scale: _Scale,
    ideal: Callable[[int], float],
    y: str,
    *,
    is_logarithmic: bool = False,
) -> dict[str, Any]:
    traces = [trace for number, each in enumerate(series) for trace in _traces(each, number, scale)]
    sizes = sorted({size for trace in traces for size in trace["x"]})
    values = [value for trace in traces for value in trace["y"]]
    return make_figure(
        [*traces, reference_line(sizes, [ideal(size) for size in sizes], "ideal")],
        "world size (devices)",
        y,
        xaxis={"type": "log", "tickvals": sizes, "ticktext": [f"{size:,}" for size in sizes]},
        yaxis={"type": "log", **log_ticks(values)} if is_logarithmic else {"rangemode": "tozero"},
    )


def _traces(series: ExtrapolatedSeries, number: int, scale: _Scale) -> Iterator[dict[str, Any]]:
    """Measured points of *series*, and its predicted ones, each with a line."""
    color = STRATEGIES[number % len(STRATEGIES)]
    yield _trace(series, "measured", series.measured, scale, (color, "circle", "solid"))
    if series.points:
        yield _trace(series, "predicted", series.points, scale, (faded(color), "diamond-open", "dash"))


def _trace(
    series: ExtrapolatedSeries,
    kind: str,
    points: Sequence[CaseSummary | ExtrapolatedPoint],
    scale: _Scale,
    look: tuple[str, str, str],
) -> dict[str, Any]:
    """*points* with the color, the symbol and the dash of *look*."""
    name, (color, symbol, dash) = f"{series.name}, {kind}", look
    sizes = [point.case.world_size for point in points]
    factors = [scale(series, size) for size in sizes]
    ends = [
        (low * by, value * by, high * by)
        for by, (low, value, high) in zip(factors, map(_speeds, points), strict=True)
    ]
    texts = [
        hover(name, format_count(size, "device"), f"{format_number(value)} ({_range_text(low, high)})")
        for size, (low, value, high) in zip(sizes, ends, strict=True)
    ]
    return scatter(
        name,
        sizes,
        [value for _, value, _ in ends],
        "lines+markers",
        texts,
        error_y=error_bars(ends),
        line={"color": color, "dash": dash},
        marker={"color": color, "symbol": symbol, "size": 10},
    )


def _range_text(low: float, high: float) -> str:
    return f"{format_number(low)} to {format_number(high)}"


def _speeds(point: CaseSummary | ExtrapolatedPoint) -> tuple[float, float, float]:
    """Low end, value and high end of the tokens/s at *point*."""
    if isinstance(point, ExtrapolatedPoint):
        speed = point.tokens_per_s
        return speed.low, speed.value, speed.high
    measured = point.values[THROUGHPUT]
    return measured.bounds[0], measured.value, measured.bounds[1]
