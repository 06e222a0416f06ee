"""The view ``throughput``: throughput against memory, with the cases that are worth choosing between."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from distbench.analysis.candidates import fronts
from distbench.analysis.run import AnalysedRun
from distbench.analysis.summary import MEMORY, THROUGHPUT, CaseSummary
from distbench.analysis.text import listed
from distbench.grouping import grouped
from distbench.report.figures import GREY, Chart, Style, drawn, errors, facts, hover, safe, scatter
from distbench.report.sheet import Field, Row, Sheet
from distbench.report.view import CASE, View, case_cells
from distbench.units import count_text, number_text

_MOST_FRONTS = 6
_MOST_LABELS = 12
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
        "median. front: no case on the same number of devices is both faster and smaller."
    )
    fields = (
        *CASE,
        Field("tokens_per_s", "tokens/s", "Mean over trials.", "tokens/s", "higher", format=number_text),
        Field("lowest", "lowest", "Slowest trial.", "tokens/s", "higher", format=number_text),
        Field("highest", "highest", "Fastest trial.", "tokens/s", "higher", format=number_text),
        Field("memory_peak", "memory", "Peak memory of the rank with the highest peak.", "B", "lower"),
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
                        "tokens_per_s": row.values[THROUGHPUT].value,
                        "lowest": row.values[THROUGHPUT].low,
                        "highest": row.values[THROUGHPUT].high,
                        "memory_peak": row.values[MEMORY].value,
                        "efficiency": efficiency.get(row.case.id),
                        "front": row.case.id in best,
                    }
                )
                for row in rows
            ]
        )

    def charts(self, run: AnalysedRun) -> Iterator[Chart]:
        rows = _rows(run)
        if not rows:
            return
        found = fronts(rows)[:_MOST_FRONTS]
        # what all cases of a front share is in its name, not next to each mark
        names = [run.names(front) for front in found]
        on_front = {case_id: name for each in names for case_id, name in each.items()}
        labels = on_front if len(on_front) <= _MOST_LABELS else {}
        style, efficiency, ranges = Style.of(run.cases), _efficiency(run), len(rows) <= _MOST_RANGES
        families = sorted(grouped(rows, lambda row: row.case.strategy.name).items())
        traces = [_front(front, i) for i, front in enumerate(found) if len(front) > 1]
        traces += [_marks(family, of, style, labels, efficiency, ranges) for family, of in families]
        yield Chart(
            "throughput-memory",
            self.title,
            "Each mark is a case, its shape and colour the strategy; up and to the left is better. "
            "Bars are the 95% interval of the throughput and the range of the memory (up to 200 cases). "
            "Grey steps are Pareto fronts: at the "
            "same device count, no case is both faster and smaller than a point on the line. The axes "
            "do not begin at 0. Click a point to jump to its row." + _left_out(run.cases),
            drawn(traces, "peak memory, MiB (lower is better)", "tokens/s (higher is better)"),
            finding=" ".join(_finding(front, called) for front, called in zip(found, names, strict=True)),
            height=520,
        )


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


def _marks(
    family: str,
    rows: list[CaseSummary],
    style: Style,
    labels: dict[str, str],
    efficiency: dict[str, float],
    ranges: bool,
) -> dict[str, Any]:
    """The marks of one strategy; those of *labels* have their names next to them."""
    throughput, memory = [row.values[THROUGHPUT] for row in rows], [row.values[MEMORY] for row in rows]
    error_x = errors([(e.low / _MIB, e.value / _MIB, e.high / _MIB) for e in memory])
    error_y = errors([(e.ends[0], e.value, e.ends[1]) for e in throughput])
    return scatter(
        family,
        [each.value / _MIB for each in memory],
        [each.value for each in throughput],
        "markers+text" if labels else "markers",
        [hover(row.case.name, *facts(row, efficiency.get(row.case.id))) for row in rows],
        [row.case.id for row in rows],
        **({"error_x": error_x, "error_y": error_y} if ranges else {}),
        text=[safe(labels.get(row.case.id, "")) for row in rows],
        textposition="top center",
        textfont={"size": 11},
        cliponaxis=False,
        marker=style.marker(family) | {"size": 11},
    )
