"""The charts of the page, as plain data for plotly's JavaScript, each with the table behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from distbench.analysis.parity import marked_names
from distbench.analysis.scaling import DEFINITIONS, Series
from distbench.analysis.summary import MEMORY, THROUGHPUT, CaseSummary
from distbench.analysis.text import one_line, shorten
from distbench.units import bytes_text, number_text

# Okabe & Ito's palette, told apart by colour-blind readers; a symbol goes with each colour
_PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D31", "#666666")
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "hexagon")
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_LONGEST_NAME = 40
_LONGEST_LEGEND = 24
_STEPS_SHOWN = 10
_MOST_LABELS = 12


@dataclass(frozen=True)
class Chart:
    """One chart: what it shows, what to see in it, its data, and the same as a table."""

    id: str
    title: str
    caption: str
    figure: dict[str, Any]
    headings: list[str] = field(default_factory=list)
    """Of the table; without any, the numbers stand in the table of the cases."""
    rows: list[list[str]] = field(default_factory=list)
    from_zero: bool = True
    """Whether the upright axis begins at 0."""


def charts(cases: Sequence[CaseSummary], series: Sequence[Series]) -> list[Chart]:
    """Return the charts that there is data for."""
    style = Style(sorted({row.case.strategy.name for row in cases}))
    made = [_memory_chart(cases, style), _scaling_chart(series, style), _loss_chart(cases, style)]
    return [chart for chart in made if chart.figure["data"]]


@dataclass(frozen=True)
class Style:
    """A colour and a symbol for each strategy."""

    families: list[str]

    def marker(self, family: str) -> dict[str, Any]:
        """Return colour and symbol of a strategy."""
        place = self.families.index(family)
        return {"color": _PALETTE[place % len(_PALETTE)], "symbol": _SYMBOLS[place % len(_SYMBOLS)]}

    def line(self, family: str, i: int) -> dict[str, Any]:
        """Return the line of case *i*, in the colour of its strategy."""
        return {"color": self.marker(family)["color"], "dash": _DASHES[i % len(_DASHES)]}


def _memory_chart(cases: Sequence[CaseSummary], style: Style) -> Chart:
    rows = [row for row in cases if row.comparable and THROUGHPUT in row.values and MEMORY in row.values]
    left_out = (
        " Cases measured on a disturbed machine are left out." if any(c.degraded for c in cases) else ""
    )
    names = marked_names(rows, cases) if len(rows) <= _MOST_LABELS else {}
    grouped = {f: [row for row in rows if row.case.strategy.name == f] for f in style.families}
    return Chart(
        "throughput-memory",
        "Throughput against memory",
        f"Each mark is a case; up and to the left is better. Bars are the range over trials.{left_out}",
        drawn(
            [_memory_trace(mine, family, style, names) for family, mine in grouped.items() if mine],
            "peak memory of a rank, MiB (lower is better)",
            "tokens/s (higher is better)",
        ),
    )


def _memory_trace(
    rows: list[CaseSummary], family: str, style: Style, names: dict[str, str]
) -> dict[str, Any]:
    """Return the marks of one strategy, each with its name if there are few enough to have *names*."""
    throughput = [row.values[THROUGHPUT] for row in rows]
    return {
        "type": "scatter",
        "mode": "markers+text" if names else "markers",
        "name": safe(family),
        "x": [row.values[MEMORY].value / 2**20 for row in rows],
        "y": [estimate.value for estimate in throughput],
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [e.high - e.value for e in throughput],
            "arrayminus": [e.value - e.low for e in throughput],
        },
        "text": [safe(names.get(row.case.id, "")) for row in rows],
        "textposition": "top center",
        "textfont": {"size": 10},
        "cliponaxis": False,
        "hovertext": [_hover(row) for row in rows],
        "hoverinfo": "text",
        "marker": style.marker(family) | {"size": 11},
    }


def _hover(row: CaseSummary) -> str:
    memory, throughput = row.values[MEMORY].value, row.values[THROUGHPUT].value
    return f"{safe(row.case.name)}<br>{number_text(throughput)} tokens/s<br>{bytes_text(memory)}"


def _scaling_chart(series: Sequence[Series], style: Style) -> Chart:
    sizes = sorted({point.world_size for each in series for point in each.points})
    traces = [_scaling_trace(each, i, style) for i, each in enumerate(series)]
    if traces:
        traces.append(_ideal(sizes))
    figure = drawn(traces, "devices", "efficiency Xₙ / (n X₁) (higher is better)")
    figure["layout"]["xaxis"] |= {"tickvals": sizes, "rangemode": "normal"}
    kinds = {each.kind for each in series}
    return Chart(
        "scaling",
        "Scaling efficiency over world sizes",
        "The grey line at 1 is ideal. "
        + " ".join(DEFINITIONS[kind] for kind in DEFINITIONS if kind in kinds),
        figure,
        ["series", "devices", "tokens/s", "efficiency"],
        [
            [each.name, str(point.world_size), number_text(point.throughput.value), f"{point.efficiency:.3f}"]
            for each in series
            for point in each.points
        ],
    )


def _scaling_trace(series: Series, i: int, style: Style) -> dict[str, Any]:
    family = series.case.strategy.name
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": safe(series.name),
        "x": [point.world_size for point in series.points],
        "y": [point.efficiency for point in series.points],
        "line": style.line(family, i),
        "marker": style.marker(family) | {"size": 9},
    }


def _ideal(sizes: list[int]) -> dict[str, Any]:
    line = {"color": "#888888", "width": 1}
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "ideal",
        "x": sizes,
        "y": [1] * len(sizes),
        "line": line,
    }


def _loss_chart(cases: Sequence[CaseSummary], style: Style) -> Chart:
    rows = [row for row in cases if any(loss is not None for loss in row.losses)]
    names = marked_names(rows, cases)
    steps = _some_steps(max((len(row.losses) for row in rows), default=0))
    return Chart(
        "loss",
        "Loss curves",
        "Training loss, mean over ranks, from the first warm-up step on, of the first trial of each case; "
        "strategies that do the same work lie on one line.",
        drawn([_loss_trace(row, names[row.case.id], i, style) for i, row in enumerate(rows)], "step", "loss"),
        ["case", *(f"step {step}" for step in steps)],
        [[names[row.case.id], *(_loss_text(row, step) for step in steps)] for row in rows],
        from_zero=False,
    )


def _loss_trace(row: CaseSummary, name: str, i: int, style: Style) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines" if len(row.losses) > 1 else "markers",
        "name": safe(name),
        "x": list(range(1, len(row.losses) + 1)),
        "y": row.losses,
        "line": style.line(row.case.strategy.name, i),
    }


def _some_steps(count: int) -> list[int]:
    """Return the first, the last and evenly spread steps between: enough for a table."""
    shown = min(count, _STEPS_SHOWN)
    return [1 + round(i * (count - 1) / max(shown - 1, 1)) for i in range(shown)]


def _loss_text(row: CaseSummary, step: int) -> str:
    loss = row.losses[step - 1] if step <= len(row.losses) else None
    return "–" if loss is None else f"{loss:.5g}"


def drawn(traces: list[dict[str, Any]], x: str, y: str) -> dict[str, Any]:
    """Return a chart's data and layout; *x* and *y* are the titles of the axes."""
    axes = {"xaxis": {"title": {"text": x}}, "yaxis": {"title": {"text": y}}}
    # a legend longer than the chart hides the chart; a line tells its name under the pointer
    return {"data": traces, "layout": {**axes, "showlegend": 1 < len(traces) <= _LONGEST_LEGEND}}


def safe(name: str) -> str:
    """Return *name* for plotly, which reads a few tags in text: none may come from a name."""
    cut = shorten(one_line(name), _LONGEST_NAME)
    return cut.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
