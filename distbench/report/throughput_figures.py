"""The chart of throughput against memory, with the cases that are worth choosing between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distbench.analysis.pareto import Front, fronts
from distbench.analysis.parity import marked_names
from distbench.analysis.scaling import Series
from distbench.analysis.summary import MEMORY, THROUGHPUT, CaseSummary, Estimate
from distbench.analysis.text import listed
from distbench.report.figures import GREY, Chart, Style, drawn, facts, hover, safe

_MOST_FRONTS = 6
_MOST_LABELS = 12
_MOST_RANGES = 200
_DASHES = ("dot", "dash", "dashdot", "solid", "longdash", "longdashdot")


def charts(cases: Sequence[CaseSummary], series: Sequence[Series], style: Style) -> list[Chart]:
    """Return the chart, if there is a case with both numbers."""
    rows = [row for row in cases if row.comparable and THROUGHPUT in row.values and MEMORY in row.values]
    if not rows:
        return []
    found = fronts(rows)[:_MOST_FRONTS]
    # what is shared on a front stands in its name, not beside each mark
    names = [marked_names(front.rows, cases) for front in found]
    on_front = {case_id: name for each in names for case_id, name in each.items()}
    labels = on_front if len(on_front) <= _MOST_LABELS else {}
    efficiency = {point.row.case.id: point.efficiency for each in series for point in each.points}
    grouped = {f: [row for row in rows if row.case.strategy.name == f] for f in style.families}
    traces = [_front(front, i) for i, front in enumerate(found) if len(front.rows) > 1]
    traces += [
        _marks(mine, family, style, labels, efficiency, len(rows) <= _MOST_RANGES)
        for family, mine in grouped.items()
        if mine
    ]
    return [
        Chart(
            "throughput-memory",
            "Throughput against memory",
            "Each mark is a case, its shape and colour the strategy; up and to the left is better. Bars are "
            "the range over trials (up to 200 cases). Grey steps are Pareto fronts: no case on as many "
            "devices is both faster and leaner than one on its step. The axes do not begin at 0. Choose a "
            "mark to go to its row." + _left_out(cases),
            drawn(
                traces,
                "peak memory, MiB (lower is better)",
                "tokens/s (higher is better)",
            ),
            told=" ".join(_told(front, called) for front, called in zip(found, names, strict=True)),
            height=520,
        )
    ]


def _left_out(cases: Sequence[CaseSummary]) -> str:
    disturbed = (
        " Cases measured on a disturbed machine are left out." if any(c.degraded for c in cases) else ""
    )
    others = " Cases that are another training are left out." if any(c.differs for c in cases) else ""
    return disturbed + others


def _told(front: Front, names: dict[str, str]) -> str:
    told = listed([names[row.case.id] for row in front.rows])
    return f"On {_where(front)}, from the leanest to the fastest: {told}."


def _where(front: Front) -> str:
    return f"{front.world_size} device{'s' if front.world_size > 1 else ''} in {front.precision}"


def _front(front: Front, i: int) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": f"front, {_where(front)}",
        "x": [row.values[MEMORY].value / 2**20 for row in front.rows],
        "y": [row.values[THROUGHPUT].value for row in front.rows],
        # what fits into less memory than the next case needs is the case before
        "line": {"shape": "hv", "color": GREY, "width": 1.5, "dash": _DASHES[i % len(_DASHES)]},
        "hoverinfo": "skip",
    }


def _marks(
    rows: list[CaseSummary],
    family: str,
    style: Style,
    labels: dict[str, str],
    efficiency: dict[str, float],
    ranges: bool,
) -> dict[str, Any]:
    """Return the marks of one strategy; those of *labels* have their names beside them."""
    throughput, memory = [row.values[THROUGHPUT] for row in rows], [row.values[MEMORY] for row in rows]
    return {
        "type": "scatter",
        "mode": "markers+text" if labels else "markers",
        "name": safe(family),
        "x": [each.value / 2**20 for each in memory],
        "y": [each.value for each in throughput],
        **(_ranges(throughput, memory) if ranges else {}),
        "text": [safe(labels.get(row.case.id, "")) for row in rows],
        "textposition": "top center",
        "textfont": {"size": 11},
        "cliponaxis": False,
        "hovertext": [hover(row.case.name, *facts(row, efficiency.get(row.case.id))) for row in rows],
        "hoverinfo": "text",
        "customdata": [row.case.id for row in rows],
        "marker": style.marker(family) | {"size": 11},
    }


def _ranges(throughput: Sequence[Estimate], memory: Sequence[Estimate]) -> dict[str, Any]:
    return {
        "error_x": _range([(e.low / 2**20, e.value / 2**20, e.high / 2**20) for e in memory]),
        "error_y": _range([(e.low, e.value, e.high) for e in throughput]),
    }


def _range(of: Sequence[tuple[float, float, float]]) -> dict[str, Any]:
    return {
        "type": "data",
        "symmetric": False,
        "array": [high - value for _, value, high in of],
        "arrayminus": [value - low for low, value, _ in of],
        "width": 3,
        "thickness": 1,
    }
