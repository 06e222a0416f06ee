"""The view ``throughput``: throughput against memory, with the cases that are worth choosing between."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from distbench.analysis.candidates import pareto_fronts
from distbench.analysis.case_summary import MEMORY, THROUGHPUT, CaseSummary
from distbench.analysis.losses.case_losses import DIFFERENT_BY_DESIGN
from distbench.analysis.run import RunAnalysis
from distbench.core.grouping import group_by
from distbench.core.text import join_limited
from distbench.core.units import format_count, format_number
from distbench.tables.table import Field, Table, TableCell, TableRow
from distbench.views.base import CASE_FIELDS, View, case_cells, rate_cell
from distbench.views.charts.figures import (
    GREY,
    CaseStyle,
    Chart,
    case_facts,
    error_bars,
    escape_label,
    hover,
    make_figure,
    scatter,
)
from distbench.views.charts.labels import place_mark_labels

_MAX_FRONTS = 6
_MAX_FACETS = 4
_PLOT = (800, 400)
"""Approximate size of the plot in CSS pixels."""
_MAX_RANGES = 200
_DASHES = ("dot", "dash", "dashdot", "solid", "longdash", "longdashdot")
_MIB = 2**20


class ThroughputView(View):
    """A row and a mark for each case that trains like its reference and has both numbers."""

    title = "Throughput against memory"
    order = 10
    compares_cases = True
    collapsed = True
    table_in_charts = True
    caption = (
        "tokens/s: mean over trials, differences between rounds taken out, and their range; memory: "
        "the largest trial. front: no case on the same number of devices is both faster and smaller. "
        "Left out: cases that change the training by design and have not been shown to converge as well, and "
        "those measured on a noisy machine."
    )
    fields = (
        *CASE_FIELDS,
        Field("tokens_per_s", "tokens/s", "Mean over trials.", "tokens/s", "higher", format=format_number),
        Field("lowest", "lowest", "Slowest trial.", "tokens/s", "higher", format=format_number),
        Field("highest", "highest", "Fastest trial.", "tokens/s", "higher", format=format_number),
        Field(
            "memory_peak",
            "memory",
            "Peak memory of any rank in any trial.",
            "B",
            "lower",
        ),
        Field("efficiency", "efficiency", "Scaling efficiency.", "", "higher", format="{:.2f}".format),
        Field("front", "front", "Whether it is on the Pareto front of its device count.", type="boolean"),
    )

    def table(self, run: RunAnalysis) -> Table:
        rows = _rows(run)
        names, efficiency = run.short_names(rows), _efficiency(run)
        best = {row.case.id for front in pareto_fronts(rows) for row in front}
        return self.make_table(
            [
                TableRow(
                    {
                        **case_cells(row.case, names[row.case.id]),
                        "tokens_per_s": rate_cell(row, THROUGHPUT),
                        "lowest": row.values[THROUGHPUT].low,
                        "highest": row.values[THROUGHPUT].high,
                        "memory_peak": row.values[MEMORY].value,
                        "efficiency": efficiency.get(row.case.id),
                        "front": TableCell(row.case.id in best, _front_text(row)),
                    }
                )
                for row in rows
            ]
        )

    def charts(self, run: RunAnalysis) -> Iterator[Chart]:
        rows = _rows(run)
        facets = _by_device_count(rows)
        drawn_rows = sum(map(len, facets))
        alone = "Numbers of devices with a single case are left out." if drawn_rows < len(rows) else ""
        left_out = f"{alone} {_left_out(run.cases)}".strip()
        for facet in facets:
            yield self._facet(run, facet, left_out, is_first=facet is facets[0])

    def _facet(self, run: RunAnalysis, rows: list[CaseSummary], left_out: str, *, is_first: bool) -> Chart:
        found = pareto_fronts(rows)[:_MAX_FRONTS]
        names, size = run.short_names(rows), rows[0].case.world_size
        called = [run.short_names(front) for front in found]
        one_size = all(row.case.world_size == size for row in rows)
        return Chart(
            "throughput-memory" if is_first else f"throughput-memory-{size}",
            f"{self.title} on {format_count(size, 'device')}" if one_size else self.title,
            "Each mark is a case, its shape and colour the strategy; up and to the left is better. "
            "Bars are the 95% interval of the throughput and the range of the memory (up to 200 cases). "
            "Grey steps are Pareto fronts: the cases that no other on as many devices beats in both speed "
            "and memory. Hollow marks are not compared: they change the training by design and have not "
            "been shown to converge as well, or were measured on a noisy machine. Hover over a point for its "
            "name. The axes do not begin at 0. Click a point to jump to its row.",
            _scatter(run, rows, found, names),
            finding=" ".join(_finding(front, words) for front, words in zip(found, called, strict=True)),
            left_out=left_out,
            height=520,
        )


def _by_device_count(rows: list[CaseSummary]) -> list[list[CaseSummary]]:
    """*rows* by number of devices, most devices first; all together if each number has just one."""
    by_size = sorted(group_by(rows, lambda row: row.case.world_size).items(), reverse=True)
    several = [of for _, of in by_size if len(of) > 1]
    return several[:_MAX_FACETS] or ([rows] if rows else [])


Front = Sequence[CaseSummary]
Ends = list[float]


def _scatter(
    run: RunAnalysis, rows: list[CaseSummary], found: Sequence[Front], names: dict[str, str]
) -> dict[str, Any]:
    x = _padded_range([end / _MIB for row in rows for end in row.values[MEMORY].bounds])
    y = _padded_range([end for row in rows for end in row.values[THROUGHPUT].bounds])
    pick = run.selection.pick
    picked = pick.id if pick else ""
    # the pick and the best cases get the first choice of a position for their labels
    by_speed = sorted(rows, key=lambda row: -_speed(row))
    preferred = [row for row in rows if row.case.id == picked] + [row for front in found for row in front]
    words = _label_positions(list(dict.fromkeys([*preferred, *by_speed])), names, x, y)
    look = _MarkStyle(
        CaseStyle.for_cases(run.cases), names, words, _efficiency(run), len(rows) <= _MAX_RANGES, picked
    )
    families = sorted(group_by(rows, lambda row: row.case.strategy.name).items())
    traces = [_front(front, i) for i, front in enumerate(found) if len(front) > 1]
    traces += [_marks(family, of, look) for family, of in families]
    traces += _highlight_pick(rows, look)
    titles = ("peak memory, MiB (lower is better)", "tokens/s (higher is better)")
    return make_figure(traces, *titles, xaxis={"range": x}, yaxis={"range": y})


def _label_positions(rows: Sequence[CaseSummary], names: dict[str, str], x: Ends, y: Ends) -> dict[str, str]:
    """Plotly's position of the label of each case, by id; labels that don't fit are left out."""
    points = [
        (_fraction(row.values[MEMORY].value / _MIB, x), 1 - _fraction(_speed(row), y), names[row.case.id])
        for row in rows
    ]
    return {rows[at].case.id: word for at, word in place_mark_labels(points, *_PLOT).items()}


def _speed(row: CaseSummary) -> float:
    return row.values[THROUGHPUT].value


def _padded_range(values: Sequence[float]) -> Ends:
    low, high = min(values), max(values)
    margin = 0.09 * (high - low) or 0.1 * abs(high) or 1.0
    return [max(0.0, low - margin), high + margin]


def _fraction(value: float, ends: Sequence[float]) -> float:
    return (value - ends[0]) / (ends[1] - ends[0])


def _highlight_pick(rows: Sequence[CaseSummary], look: _MarkStyle) -> list[dict[str, Any]]:
    """Ring around the recommended case, if it is one of *rows*, with its name outside the ring."""
    picked = [row for row in rows if row.case.id == look.pick]
    shape = {"symbol": "circle-open", "size": 24, "color": GREY, "line": {"width": 3}}
    return [
        scatter(
            "recommended",
            [row.values[MEMORY].value / _MIB],
            [_speed(row)],
            "markers+text",
            text=[escape_label(look.names[row.case.id])],
            textposition=look.words.get(row.case.id, "middle left"),
            textfont={"size": 11},
            marker=shape,
            hoverinfo="skip",
        )
        for row in picked
    ]


def _rows(run: RunAnalysis) -> list[CaseSummary]:
    known = [row for row in run.cases if THROUGHPUT in row.values and MEMORY in row.values]
    return [row for row in known if not row.differs]


def _efficiency(run: RunAnalysis) -> dict[str, float]:
    return {point.row.case.id: point.efficiency for each in run.scaling for point in each.points}


def _left_out(cases: Sequence[CaseSummary]) -> str:
    return "Cases that are not equivalent are left out." if any(c.differs for c in cases) else ""


def _finding(front: Sequence[CaseSummary], names: dict[str, str]) -> str:
    cases = join_limited([names[row.case.id] for row in front])
    return f"On {_where(front)}, from the smallest to the fastest: {cases}."


def _where(front: Sequence[CaseSummary]) -> str:
    case = front[0].case
    return f"{format_count(case.world_size, 'device')} in {case.precision.compute}"


def _front(front: Sequence[CaseSummary], i: int) -> dict[str, Any]:
    return scatter(
        f"front, {_where(front)}",
        [row.values[MEMORY].value / _MIB for row in front],
        [row.values[THROUGHPUT].value for row in front],
        "lines",
        # below the memory of the next case, the previous case is the choice
        line={"shape": "hv", "color": GREY, "width": 1.5, "dash": _DASHES[i % len(_DASHES)]},
        hoverinfo="skip",
    )


@dataclass(frozen=True)
class _MarkStyle:
    """Data shared by the marks of all families."""

    style: CaseStyle
    names: dict[str, str]
    words: dict[str, str]
    """Id of a case -> plotly's position of its label; labels that don't fit are left out."""
    efficiency: dict[str, float]
    ranges: bool
    pick: str
    """Id of the recommended case, whose label belongs to its ring."""


def _marks(family: str, rows: list[CaseSummary], look: _MarkStyle) -> dict[str, Any]:
    """Marks of one strategy with their labels."""
    throughput, memory = [row.values[THROUGHPUT] for row in rows], [row.values[MEMORY] for row in rows]
    error_x = error_bars([(e.low / _MIB, e.value / _MIB, e.high / _MIB) for e in memory])
    error_y = error_bars([(e.bounds[0], e.value, e.bounds[1]) for e in throughput])
    ids = [row.case.id for row in rows]
    marker = look.style.marker(family) | {"size": 11}
    symbols = [f"{marker['symbol']}-open" if _front_text(row) else marker["symbol"] for row in rows]
    return scatter(
        family,
        [each.value / _MIB for each in memory],
        [each.value for each in throughput],
        "markers+text" if any(id_ in look.words for id_ in ids) else "markers",
        [
            hover(
                row.case.name,
                *case_facts(row, look.efficiency.get(row.case.id)),
                _design_note(row),
                f"noisy: {row.degraded}" if row.degraded else "",
            )
            for row in rows
        ],
        ids,
        **({"error_x": error_x, "error_y": error_y} if look.ranges else {}),
        text=[escape_label(look.names[id_]) if id_ in look.words and id_ != look.pick else "" for id_ in ids],
        textposition=[look.words.get(id_, "top center") for id_ in ids],
        textfont={"size": 11},
        cliponaxis=False,
        marker={**marker, "symbol": symbols},
    )


def _front_text(row: CaseSummary) -> str:
    """Text of a case that no front has, whatever its numbers; empty for any other."""
    if row.unproven_design:
        return f"no: {DIFFERENT_BY_DESIGN}"
    return "no: noisy machine" if row.degraded else ""


def _design_note(row: CaseSummary) -> str:
    return (
        f"{DIFFERENT_BY_DESIGN}, not shown to converge: {row.unproven_design.why}"
        if row.unproven_design
        else ""
    )
