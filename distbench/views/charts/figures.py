"""Plotly figures as plain data, with a shared style and axes, and a table behind each."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from distbench.analysis.case_summary import MEMORY, THROUGHPUT, CaseSummary
from distbench.analysis.run import RunAnalysis
from distbench.analysis.wire_traffic import WIRE_BYTES
from distbench.core.case import Case
from distbench.core.text import one_line, shorten
from distbench.core.units import format_bytes, format_count, format_number
from distbench.strategies.base import REFERENCE_STRATEGY
from distbench.tables.table import Table
from distbench.views.charts import palette

T = TypeVar("T")

GREY = palette.GREY
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "hexagon")
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
MAX_CHART_CASES = 40
"""Maximum number of bars or lines that can be distinguished; the tables have all cases."""

_MAX_NAME_LENGTH = 40
_MAX_LEGEND_LENGTH = 24
_HEIGHT, _ROW, _AROUND_ROWS = 340, 26, 130

_MAX_TICKS, _MAX_DECADES = 8, 3


@dataclass(frozen=True)
class Chart:
    """A chart with title, caption, data, and the same numbers as a table."""

    id: str
    title: str
    caption: str
    figure: dict[str, Any]
    table: Table | None = None
    """Numbers behind it; None: those of the chapter, or of the table of all cases."""
    finding: str = ""
    """Finding in a sentence: for readers who can't see the chart, or read first."""
    left_out: str = ""
    """Sentence on what it does not show, which stays visible; empty if it shows all."""
    height: int = 0
    """Height in CSS pixels; 0: by the number of its rows."""

    @property
    def pixels(self) -> int:
        """Height on the page in CSS pixels."""
        rows = len(self.figure["layout"]["yaxis"].get("ticktext", ()))
        return self.height or (_AROUND_ROWS + _ROW * max(rows, 2) if rows else _HEIGHT)


class HasCase(Protocol):
    """Anything about one case, such as a row or a history."""

    @property
    def case(self) -> Case:
        """The case."""
        ...


@dataclass(frozen=True)
class CaseStyle:
    """Color and symbol for each strategy family, the same in all charts of a page."""

    families: list[str]

    @classmethod
    def for_cases(cls, rows: Iterable[HasCase]) -> CaseStyle:
        """Style of a page about the cases of *rows*."""
        # references that were only trained, or only used in checks, are not cases
        return cls(sorted({row.case.strategy.name for row in rows} | {REFERENCE_STRATEGY}))

    def marker(self, family: str) -> dict[str, Any]:
        """Color and symbol of a strategy; the pairs of up to 64 strategies differ."""
        lap, place = divmod(self.families.index(family), len(palette.STRATEGIES))
        symbol = SYMBOLS[(place + lap) % len(SYMBOLS)]
        return {"color": palette.STRATEGIES[place], "symbol": symbol}

    def line(self, family: str, i: int) -> dict[str, Any]:
        """Line of case *i*, in the color of its strategy."""
        return {"color": self.marker(family)["color"], "dash": _DASHES[i % len(_DASHES)]}


@dataclass(frozen=True)
class ChartSelection(Generic[T]):
    """Cases that fit into a chart, by number of devices, the fastest first."""

    items: list[tuple[CaseSummary, str, T]]
    """Cases with their names and data to draw."""
    truncation_note: str
    """Sentence on the cases that are not shown; empty if all are."""

    @classmethod
    def fastest(
        cls, run: RunAnalysis, read: Callable[[CaseSummary], T | None], most: int = MAX_CHART_CASES
    ) -> ChartSelection[T]:
        """The *most* fastest of the cases for which *read* returns something to draw."""
        known = [(row, content) for row in run.cases if (content := read(row)) is not None]
        fastest = sorted(known, key=lambda pair: speed_order(pair[0]))[:most]
        fastest.sort(key=lambda pair: pair[0].case.world_size)
        names = run.short_names([row for row, _ in fastest])
        left_out = f"Only the {most} fastest of {len(known):,} cases are shown." if len(known) > most else ""
        return cls([(row, names[row.case.id], content) for row, content in fastest], left_out)

    @property
    def names(self) -> list[str]:
        """Names of the cases."""
        return [name for _, name, _ in self.items]


def scatter(
    name: str,
    x: Iterable[float | None],
    y: Iterable[float | None],
    mode: str = "markers",
    hovers: Iterable[str] | None = None,
    cases: Iterable[str] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Marks or a line; *hovers* are the texts under the pointer, *cases* the ids of the rows to jump to."""
    trace = {"type": "scatter", "mode": mode, "name": escape_label(name), "x": list(x), "y": list(y), **more}
    if hovers is not None:
        trace |= {"hovertext": list(hovers), "hoverinfo": "text"}
    return trace if cases is None else {**trace, "customdata": list(cases)}


@dataclass(frozen=True)
class Bar:
    """A bar of stacked segments that is about a case."""

    name: str
    """Title of the text under the pointer."""
    case_id: str
    parts: Mapping[str, float | None]
    """Segment -> its length; None: unknown."""
    remarks: Mapping[str, str] = field(default_factory=dict)
    """Segment -> last line of the text under the pointer."""


def stacked_bars(
    bars: Sequence[Bar],
    labels: Mapping[str, str],
    colors: Mapping[str, str],
    text: Callable[[str, float | None], str],
    scale: float = 1.0,
    places: Sequence[float] = (),
    **look: Any,
) -> list[dict[str, Any]]:
    """Stacked horizontal *bars* with a segment for each of *labels*.

    Besides color, segments are distinguished by order, which is that of the legend, and by gaps between them.
    *text* formats the length of a segment for the text under the pointer; on the axis, lengths are divided by
    *scale*. *places* are the positions of the bars on the vertical axis, if not 0, 1, 2 ...
    """
    return [
        {
            "type": "bar",
            "orientation": "h",
            "name": escape_label(label),
            "y": [*(places or range(len(bars)))],
            "x": [None if (size := bar.parts.get(part)) is None else float(size) / scale for bar in bars],
            "marker": {"color": colors[part]},
            "width": 0.7,
            "hovertext": [
                hover(bar.name, f"{label}: {text(part, bar.parts.get(part))}", bar.remarks.get(part, ""))
                for bar in bars
            ],
            "hoverinfo": "text",
            "customdata": [bar.case_id for bar in bars],
            **look,
        }
        for part, label in labels.items()
    ]


def error_bars(of: Sequence[tuple[float, float, float]]) -> dict[str, Any]:
    """Error bars of (lowest, value, highest) each."""
    return {
        "type": "data",
        "symmetric": False,
        # the range of two numbers may exceed JSON's numbers
        "array": [min(high - value, sys.float_info.max) for _, value, high in of],
        "arrayminus": [min(value - low, sys.float_info.max) for low, value, _ in of],
        "width": 3,
        "thickness": 1,
    }


def reference_line(x: Sequence[float], y: Sequence[float], name: str = "", width: int = 1) -> dict[str, Any]:
    """A grey line that values are compared with; without a *name* it is not in the legend."""
    quiet: dict[str, Any] = {} if name else {"hoverinfo": "skip", "showlegend": False}
    return scatter(name, x, y, "lines", line={"color": GREY, "width": width}, **quiet)


def make_figure(
    traces: list[dict[str, Any]], x: str, y: str = "", rows: Sequence[str] = (), **layout: Any
) -> dict[str, Any]:
    """Data and layout of a chart; *x* and *y* are the titles of the axes.

    *rows* are the labels from top to bottom at 0, 1, 2 ... of the vertical axis: positions, as labels may
    repeat. *layout* adds to plotly's layout; ``xaxis`` and ``yaxis`` in it add to the axes.
    """
    places = {
        "tickvals": list(range(len(rows))),
        "ticktext": [escape_label(name) for name in rows],
        "range": [len(rows) - 0.5, -0.5],
        "showgrid": False,
        "zeroline": False,
    }
    axes = {
        "xaxis": {"title": {"text": x}, **layout.pop("xaxis", {})},
        "yaxis": {"title": {"text": y}, **(places if rows else {}), **layout.pop("yaxis", {})},
    }
    named = [trace for trace in traces if trace.get("showlegend", True)]
    # a legend longer than the chart hides the chart; hovering over a line shows its name
    return {"data": traces, "layout": {**axes, "showlegend": 1 < len(named) <= _MAX_LEGEND_LENGTH, **layout}}


def escape_label(name: str) -> str:
    """Escape *name* for plotly, which interprets a few tags in text: names must not add any."""
    cut = shorten(one_line(name), _MAX_NAME_LENGTH)
    return cut.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def hover(title: str, *facts: str) -> str:
    """Text under the pointer: *title* in bold and a line for each of *facts*."""
    return "<br>".join([f"<b>{escape_label(title)}</b>", *(escape_label(fact) for fact in facts if fact)])


def case_facts(row: CaseSummary, efficiency: float | None = None) -> list[str]:
    """Known facts of a case in a few lines."""
    lines = ["; ".join([row.status, *(verdict.word for verdict in row.verdicts.values())])]
    if (throughput := row.values.get(THROUGHPUT)) is not None:
        among = f" ({format_number(throughput.low)} to {format_number(throughput.high)})"
        lines.append(f"{throughput.text} tokens/s{among if throughput.trial_count > 1 else ''}")
    if row.relative_throughput is not None:
        lines.append(f"{row.relative_throughput:.2f} × ddp")
    for column, words in ((MEMORY, "at the peak of a rank"), (WIRE_BYTES, "sent by a rank per step")):
        if (size := row.values.get(column)) is not None:
            lines.append(f"{format_bytes(size.value)} {words}")
    if efficiency is not None:
        lines.append(f"scaling efficiency {efficiency:.2f}")
    return lines


def speed_order(row: CaseSummary) -> float:
    """Key by which cases are sorted with the fastest first, and those without a throughput last."""
    throughput = row.values.get(THROUGHPUT)
    return -throughput.value if throughput else float("inf")


@dataclass(frozen=True)
class CaseAxis:
    """Rows of a vertical axis: one for each case, below a heading for each number of devices."""

    labels: list[str]
    positions: list[int]
    """Indices of the cases among the labels."""

    @classmethod
    def of(cls, cases: Iterable[tuple[CaseSummary, str]]) -> CaseAxis:
        """Rows for *cases* with their labels; cases come ordered by number of devices."""
        listed = [*cases]
        labels: list[str] = []
        places: list[int] = []
        several = len({row.case.world_size for row, _ in listed}) > 1
        last = 0
        for row, label in listed:
            if several and row.case.world_size != last:
                last = row.case.world_size
                labels.append(f"{format_count(last, 'device')}:")
            places.append(len(labels))
            labels.append(label)
        return cls(labels, places)


def byte_ticks(sizes: Iterable[float]) -> dict[str, Any]:
    """Ticks of a logarithmic axis of bytes, at powers of two, in KiB and MiB."""
    known = [size for size in sizes if size > 0]
    if not known:
        return {}
    low, high = math.floor(math.log2(min(known))), math.ceil(math.log2(max(known)))
    every = max(1, -(-(high - low) // _MAX_TICKS))
    ticks = [2.0**power for power in range(low, high + 1, every)]
    return {
        "tickvals": ticks,
        "ticktext": [format_bytes(tick).replace(".00", "").replace(".0", "") for tick in ticks],
    }


def log_ticks(values: Iterable[float]) -> dict[str, Any]:
    """Ticks of a logarithmic axis at 1, 2 and 5 of each power of ten, or at the powers alone."""
    known = [value for value in values if value > 0]
    if not known:
        return {}
    low, high = math.floor(math.log10(min(known))), math.ceil(math.log10(max(known)))
    digits = (1, 2, 5) if high - low <= _MAX_DECADES else (1,)
    ticks = [digit * 10.0**power for power in range(low, high + 1) for digit in digits]
    return {"tickvals": ticks, "ticktext": [f"{tick:.12g}" for tick in ticks]}
