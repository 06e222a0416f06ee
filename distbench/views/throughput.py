"""The view ``throughput``: throughput against memory, with the cases that are worth choosing between."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from distbench.analysis.candidates import fronts
from distbench.analysis.case_summary import MEMORY, THROUGHPUT, CaseSummary
from distbench.analysis.choice import Wish, choose
from distbench.analysis.loss_deviation import BY_DESIGN
from distbench.analysis.run import AnalysedRun
from distbench.core.grouping import grouped
from distbench.core.text import listed
from distbench.core.units import count_text, number_text
from distbench.report.figures import GREY, Chart, Style, drawn, errors, facts, hover, safe, scatter
from distbench.report.labels import beside_marks
from distbench.report.view import CASE, View, case_cells, rate_cell
from distbench.tables.table import Cell, Field, Row, Sheet

_MOST_FRONTS = 6
_MOST_FACETS = 4
_PLOT = (800, 400)
"""CSS pixels of the plot, about."""
_MOST_RANGES = 200
_DASHES = ("dot", "dash", "dashdot", "solid", "longdash", "longdashdot")
_MIB = 2**20


class ThroughputView(View):
    """A row and a mark for each case that may be compared and has both numbers."""

    title = "Throughput against memory"
    place = 10
    is_behind = True
    caption = (
        "tokens/s: mean over trials, differences between rounds taken out, and their range; memory: "
        "the largest trial. front: no case on the same number of devices is both faster and smaller. A case "
        "that differs by design and was not seen to converge as well is on no front."
    )
    fields = (
        *CASE,
        Field("tokens_per_s", "tokens/s", "Mean over trials.", "tokens/s", "higher", format=number_text),
        Field("lowest", "lowest", "Slowest trial.", "tokens/s", "higher", format=number_text),
        Field("highest", "highest", "Fastest trial.", "tokens/s", "higher", format=number_text),
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

    def sheet(self, run: AnalysedRun) -> Sheet:
        rows = _rows(run)
        names, efficiency = run.names(rows), _efficiency(run)
        best = {row.case.id for front in fronts(rows) for row in front}
        return self.made(
            [
                Row(
                    {
                        **case_cells(row.case, names[row.case.id]),
                        "tokens_per_s": rate_cell(row, THROUGHPUT),
                        "lowest": row.values[THROUGHPUT].low,
                        "highest": row.values[THROUGHPUT].high,
                        "memory_peak": row.values[MEMORY].value,
                        "efficiency": efficiency.get(row.case.id),
                        "front": Cell(row.case.id in best, f"no: {BY_DESIGN}" if row.unproven else ""),
                    }
                )
                for row in rows
            ]
        )

    def charts(self, run: AnalysedRun) -> Iterator[Chart]:
        rows = _rows(run)
        facets = _facets(rows)
        drawn_rows = sum(map(len, facets))
        alone = " What is alone on its number of devices is not drawn." if drawn_rows < len(rows) else ""
        for facet in facets:
            yield self._facet(run, facet, alone + _left_out(run.cases), is_first=facet is facets[0])

    def _facet(self, run: AnalysedRun, rows: list[CaseSummary], more: str, *, is_first: bool) -> Chart:
        found = fronts(rows)[:_MOST_FRONTS]
        names, size = run.names(rows), rows[0].case.world_size
        called = [run.names(front) for front in found]
        one_size = all(row.case.world_size == size for row in rows)
        return Chart(
            "throughput-memory" if is_first else f"throughput-memory-{size}",
            f"{self.title} on {count_text(size, 'device')}" if one_size else self.title,
            "Each mark is a case, its shape and colour the strategy; up and to the left is better. "
            "Bars are the 95% interval of the throughput and the range of the memory (up to 200 cases). "
            "Grey steps are Pareto fronts: at the "
            "same device count, no case is both faster and smaller than a point on the line. Hollow marks "
            "are on no front: they differ by design and were not seen to converge as well. Names that "
            "have no room are told by the pointer. The axes do not begin at 0. Click a point to jump to its "
            f"row.{more}",
            _plane(run, rows, found, names),
            finding=" ".join(_finding(front, words) for front, words in zip(found, called, strict=True)),
            height=520,
        )


def _facets(rows: list[CaseSummary]) -> list[list[CaseSummary]]:
    """*rows* by number of devices, most devices first; all together where no number has several."""
    by_size = sorted(grouped(rows, lambda row: row.case.world_size).items(), reverse=True)
    several = [of for _, of in by_size if len(of) > 1]
    return several[:_MOST_FACETS] or ([rows] if rows else [])


Front = Sequence[CaseSummary]
Ends = list[float]


def _plane(
    run: AnalysedRun, rows: list[CaseSummary], found: Sequence[Front], names: dict[str, str]
) -> dict[str, Any]:
    x = _around([end / _MIB for row in rows for end in row.values[MEMORY].ends])
    y = _around([end for row in rows for end in row.values[THROUGHPUT].ends])
    pick = choose(run.candidates, Wish()).pick
    picked = pick.id if pick else ""
    # the pick and the best cases have the first choice of a place for their names
    by_speed = sorted(rows, key=lambda row: -_speed(row))
    preferred = [row for row in rows if row.case.id == picked] + [row for front in found for row in front]
    words = _words(list(dict.fromkeys([*preferred, *by_speed])), names, x, y)
    look = _Look(Style.of(run.cases), names, words, _efficiency(run), len(rows) <= _MOST_RANGES, picked)
    families = sorted(grouped(rows, lambda row: row.case.strategy.name).items())
    traces = [_front(front, i) for i, front in enumerate(found) if len(front) > 1]
    traces += [_marks(family, of, look) for family, of in families]
    traces += _ring(rows, look)
    titles = ("peak memory, MiB (lower is better)", "tokens/s (higher is better)")
    return drawn(traces, *titles, xaxis={"range": x}, yaxis={"range": y})


def _words(rows: Sequence[CaseSummary], names: dict[str, str], x: Ends, y: Ends) -> dict[str, str]:
    """Plotly's word for where the name of a case stands, by its id; without those that have no room."""
    points = [
        (_part(row.values[MEMORY].value / _MIB, x), 1 - _part(_speed(row), y), names[row.case.id])
        for row in rows
    ]
    return {rows[at].case.id: word for at, word in beside_marks(points, *_PLOT).items()}


def _speed(row: CaseSummary) -> float:
    return row.values[THROUGHPUT].value


def _around(values: Sequence[float]) -> Ends:
    low, high = min(values), max(values)
    margin = 0.09 * (high - low) or 0.1 * abs(high) or 1.0
    return [max(0.0, low - margin), high + margin]


def _part(value: float, ends: Sequence[float]) -> float:
    return (value - ends[0]) / (ends[1] - ends[0])


def _ring(rows: Sequence[CaseSummary], look: _Look) -> list[dict[str, Any]]:
    """A ring around the recommended case, if it is one of *rows*, with its name outside of the ring."""
    picked = [row for row in rows if row.case.id == look.pick]
    shape = {"symbol": "circle-open", "size": 24, "color": GREY, "line": {"width": 3}}
    return [
        scatter(
            "recommended",
            [row.values[MEMORY].value / _MIB],
            [_speed(row)],
            "markers+text",
            text=[safe(look.names[row.case.id])],
            textposition=look.words.get(row.case.id, "middle left"),
            textfont={"size": 11},
            marker=shape,
            hoverinfo="skip",
        )
        for row in picked
    ]


def _rows(run: AnalysedRun) -> list[CaseSummary]:
    return [row for row in run.cases if row.comparable and THROUGHPUT in row.values and MEMORY in row.values]


def _efficiency(run: AnalysedRun) -> dict[str, float]:
    return {point.row.case.id: point.efficiency for each in run.scaling for point in each.points}


def _left_out(cases: Sequence[CaseSummary]) -> str:
    noisy = " Cases measured on a noisy machine are left out." if any(c.degraded for c in cases) else ""
    others = " Cases that are not equivalent are left out." if any(c.differs for c in cases) else ""
    return noisy + others


def _finding(front: Sequence[CaseSummary], names: dict[str, str]) -> str:
    cases = listed([names[row.case.id] for row in front])
    return f"On {_where(front)}, from the smallest to the fastest: {cases}."


def _where(front: Sequence[CaseSummary]) -> str:
    case = front[0].case
    return f"{count_text(case.world_size, 'device')} in {case.precision.compute}"


def _front(front: Sequence[CaseSummary], i: int) -> dict[str, Any]:
    return scatter(
        f"front, {_where(front)}",
        [row.values[MEMORY].value / _MIB for row in front],
        [row.values[THROUGHPUT].value for row in front],
        "lines",
        # what fits into less memory than the next case needs is the case before
        line={"shape": "hv", "color": GREY, "width": 1.5, "dash": _DASHES[i % len(_DASHES)]},
        hoverinfo="skip",
    )


@dataclass(frozen=True)
class _Look:
    """What the marks of all families share."""

    style: Style
    names: dict[str, str]
    words: dict[str, str]
    """Id of a case -> plotly's word for where its name stands; without those that have no room."""
    efficiency: dict[str, float]
    ranges: bool
    pick: str
    """Id of the recommended case, whose ring has its name."""


def _marks(family: str, rows: list[CaseSummary], look: _Look) -> dict[str, Any]:
    """The marks of one strategy with their names."""
    throughput, memory = [row.values[THROUGHPUT] for row in rows], [row.values[MEMORY] for row in rows]
    error_x = errors([(e.low / _MIB, e.value / _MIB, e.high / _MIB) for e in memory])
    error_y = errors([(e.ends[0], e.value, e.ends[1]) for e in throughput])
    ids = [row.case.id for row in rows]
    marker = look.style.marker(family) | {"size": 11}
    symbols = [f"{marker['symbol']}-open" if row.unproven else marker["symbol"] for row in rows]
    return scatter(
        family,
        [each.value / _MIB for each in memory],
        [each.value for each in throughput],
        "markers+text" if any(id_ in look.words for id_ in ids) else "markers",
        [hover(row.case.name, *facts(row, look.efficiency.get(row.case.id)), _caveat(row)) for row in rows],
        ids,
        **({"error_x": error_x, "error_y": error_y} if look.ranges else {}),
        text=[safe(look.names[id_]) if id_ in look.words and id_ != look.pick else "" for id_ in ids],
        textposition=[look.words.get(id_, "top center") for id_ in ids],
        textfont={"size": 11},
        cliponaxis=False,
        marker={**marker, "symbol": symbols},
    )


def _caveat(row: CaseSummary) -> str:
    return f"{BY_DESIGN}, not seen to converge as well: {row.unproven.why}" if row.unproven else ""
