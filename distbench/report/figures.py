"""The charts of the page, as plain data for plotly's JavaScript."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distbench.analysis.scaling import Point
from distbench.analysis.summary import MEMORY, THROUGHPUT, CaseSummary
from distbench.units import bytes_text, number_text

# Okabe & Ito's palette, told apart by colour-blind readers; a symbol goes with each colour
_PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D31", "#666666")
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "hexagon")
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_LONGEST_NAME = 60


@dataclass(frozen=True)
class Chart:
    """One chart: what it shows, what to see in it, and its data."""

    id: str
    title: str
    caption: str
    figure: dict[str, Any]


def charts(cases: Sequence[CaseSummary], points: Mapping[str, Sequence[Point]]) -> list[Chart]:
    """Return the charts that there is data for."""
    families = sorted({_family(row.case.label) for row in cases})
    made = [_memory_chart(cases, families), _scaling_chart(points, families), _loss_chart(cases, families)]
    return [chart for chart in made if chart.figure["data"]]


def _memory_chart(cases: Sequence[CaseSummary], families: list[str]) -> Chart:
    rows = [row for row in cases if THROUGHPUT in row.values and MEMORY in row.values]
    traces = []
    for family in families:
        mine = [row for row in rows if _family(row.case.label) == family]
        if mine:
            traces.append(_memory_trace(mine, family, families))
    return Chart(
        "throughput-memory",
        "Throughput against memory",
        "Each mark is a case; up and to the left is better. Vertical bars are the range over trials.",
        _figure(traces, "peak memory of a rank, MiB (lower is better)", "tokens/s (higher is better)"),
    )


def _memory_trace(rows: list[CaseSummary], family: str, families: list[str]) -> dict[str, Any]:
    throughput = [row.values[THROUGHPUT] for row in rows]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": _short(family),
        "x": [row.values[MEMORY].value / 2**20 for row in rows],
        "y": [estimate.value for estimate in throughput],
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [e.high - e.value for e in throughput],
            "arrayminus": [e.value - e.low for e in throughput],
        },
        "text": [_hover(row) for row in rows],
        "hoverinfo": "text",
        "marker": _marker(family, families) | {"size": 11},
    }


def _scaling_chart(points: Mapping[str, Sequence[Point]], families: list[str]) -> Chart:
    traces: list[dict[str, Any]] = []
    for i, (name, group) in enumerate(points.items()):
        family = _family(name.partition("/")[0])
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": _short(name),
                "x": [point.world_size for point in group],
                "y": [point.efficiency for point in group],
                "line": {"dash": _DASHES[i % len(_DASHES)]},
                "marker": {"size": 9, **_marker(family, families)},
            }
        )
    sizes = sorted({point.world_size for group in points.values() for point in group})
    if traces:
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": "ideal",
                "x": sizes,
                "y": [1.0] * len(sizes),
                "line": {"color": "#888888", "width": 1},
            }
        )
    figure = _figure(traces, "devices", "efficiency X_n / (n X_1) (higher is better)")
    figure["layout"]["xaxis"] |= {"tickvals": sizes, "rangemode": "normal"}
    return Chart(
        "scaling",
        "Scaling efficiency over world sizes",
        "Throughput over n times that of one device; 1 is ideal, and a line that falls loses to "
        "communication or to work per device that shrinks.",
        figure,
    )


def _loss_chart(cases: Sequence[CaseSummary], families: list[str]) -> Chart:
    traces = []
    for i, row in enumerate(row for row in cases if row.losses):
        colour = _marker(_family(row.case.label), families)["color"]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": _short(row.case.name),
                "x": list(range(1, len(row.losses) + 1)),
                "y": row.losses,
                "line": {"color": colour, "dash": _DASHES[i % len(_DASHES)]},
            }
        )
    return Chart(
        "loss",
        "Loss curves",
        "Training loss from the first warm-up step on; strategies that do the same work lie on one line.",
        _figure(traces, "step", "loss, nats"),
    )


def _figure(traces: list[dict[str, Any]], x: str, y: str) -> dict[str, Any]:
    return {"data": traces, "layout": {"xaxis": {"title": {"text": x}}, "yaxis": {"title": {"text": y}}}}


def _family(label: str) -> str:
    """Return the strategy family of a label: ``zero`` of ``zero3+offload``."""
    found = re.match(r"[A-Za-z_]+", label)
    return found.group() if found else label


def _marker(family: str, families: list[str]) -> dict[str, Any]:
    place = families.index(family) if family in families else 0
    return {"color": _PALETTE[place % len(_PALETTE)], "symbol": _SYMBOLS[place % len(_SYMBOLS)]}


def _hover(row: CaseSummary) -> str:
    memory, throughput = row.values[MEMORY].value, row.values[THROUGHPUT].value
    return f"{_short(row.case.name)}<br>{number_text(throughput)} tokens/s<br>{bytes_text(memory)}"


def _short(name: str) -> str:
    """Return *name* for plotly, which reads a few tags in text: none may come from a name."""
    cut = name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"
    return cut.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
