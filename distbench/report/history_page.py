"""Metrics over runs as one offline page: a chart a case, with its breaks and steps."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from distbench.analysis.history import Point, Series, Word
from distbench.analysis.text import listed, one_line
from distbench.errors import InfrastructureError
from distbench.files import write_whole
from distbench.report import html
from distbench.report.chapters import Chapter
from distbench.report.figures import GREY, PALETTE, Chart, drawn, hover
from distbench.report.history_view import (
    History,
    break_sentences,
    change_text,
    sentences,
    step_sentences,
    table,
    title,
    when,
)
from distbench.units import value_text

_MOST = 60
"""Charts of a metric; the table has all cases."""
_MOST_DATES = 8
_MOST_TOLD = 4
_HEADINGS = ("run", "made", "value", "lowest trial", "highest trial", "trials", "from here on")
_LOOKS: dict[Word, tuple[str, str, str]] = {
    "worse": ("step, worse", PALETTE[1], "triangle-down"),
    "better": ("step, better", PALETTE[2], "triangle-up"),
    "other": ("step", PALETTE[3], "diamond"),
}


@dataclass(frozen=True)
class _Part:
    """What the page says of one metric."""

    title: str
    said: list[str]
    chapter: Chapter


def write(made: Sequence[History], skipped: Sequence[str], file: Path) -> None:
    """Write the page of *made*, one part a metric, to *file*; *skipped* tells of runs that can't be read.

    Raises:
        InfrastructureError: the file can't be written.
    """
    try:
        write_whole(file, render(made, skipped))
    except OSError as error:
        raise InfrastructureError(f"{file}: can't be written: {error.strerror}") from error


def render(made: Sequence[History], skipped: Sequence[str]) -> str:
    """Return the page of *made*, one part a metric."""
    parts = [_part(each, number) for number, each in enumerate(made, 1)]
    charts = [chart for part in parts for chart in part.chapter.charts]
    scripts = ("report.js", "tables.js")
    return html.render("history.html", scripts, charts, {}, parts=parts, skipped=skipped)


def _part(made: History, number: int) -> _Part:
    # what changed is looked for first
    ordered = sorted(made.series, key=lambda each: (not each.changes, not each.breaks))
    charts = [_chart(each, made, f"history-{number}-{i}") for i, each in enumerate(ordered[:_MOST], 1)]
    behind = table(made)
    if len(ordered) > _MOST:
        cut = f" Drawn are {_MOST} of {len(ordered):,} cases, those with steps first."
        behind = replace(behind, caption=behind.caption + cut)
    # the notes of the table stand above, in words
    behind = replace(behind, notes=())
    metric = one_line(made.metric)
    return _Part(
        metric,
        sentences(made),
        Chapter(f"history-{number}", f"{metric}: case by case", charts, behind, folded=False),
    )


def _chart(series: Series, made: History, id_: str) -> Chart:
    steps = step_sentences(series) or ["no step that noise and drift don't explain"]
    # a break each night says nothing more by its thirtieth
    said = [*steps, *break_sentences(series)[-_MOST_TOLD:]]
    return Chart(
        id_,
        made.names[series.case.id],
        "Each mark is a run, bars the range of its trials; lines are the levels between steps, dotted lines "
        "where the environment changed.",
        drawn(
            _traces(series),
            "run",
            title(made),
            xaxis=_dates(series.points),
            showlegend=True,
        ),
        _HEADINGS,
        [_row(series, place) for place in range(len(series.points))],
        told=" ".join(f"{sentence[0].upper()}{sentence[1:]}." for sentence in said),
    )


def _traces(series: Series) -> list[dict[str, Any]]:
    found = [_runs(series), _levels(series)]
    if series.breaks:
        found.append(_breaks(series))
    return found + [_steps(series, word) for word in _LOOKS if any(c.word == word for c in series.changes)]


def _runs(series: Series) -> dict[str, Any]:
    values = [point.value for point in series.points]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "run",
        "x": list(range(len(values))),
        "y": [each.value for each in values],
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [_finite(each.high - each.value) for each in values],
            "arrayminus": [_finite(each.value - each.low) for each in values],
            "thickness": 1,
        },
        "hovertext": [hover(when(point), _value(series, point), _trials(point)) for point in series.points],
        "hoverinfo": "text",
        "marker": {"color": PALETTE[0], "size": 7},
    }


def _levels(series: Series) -> dict[str, Any]:
    """Return the levels as one line with gaps."""
    edges = [[level.start - 0.4, level.end - 0.6, None] for level in series.levels]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "level",
        "x": [x for edge in edges for x in edge],
        "y": [y for level in series.levels for y in (level.value, level.value, None)],
        "hoverinfo": "skip",
        "line": {"color": PALETTE[0], "width": 2},
    }


def _breaks(series: Series) -> dict[str, Any]:
    """Return the breaks as one upright line with gaps; what changed is told at its middle, too."""
    low = min(point.value.low for point in series.points)
    high = max(point.value.high for point in series.points)
    if low == high:
        low = low - abs(low) / 20 if low else -1.0
    told = [hover("environment changed", *each.facts[:8]) for each in series.breaks]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "environment changed",
        "x": [x for each in series.breaks for x in (*[each.place - 0.5] * 3, None)],
        "y": [y for _ in series.breaks for y in (low, low / 2 + high / 2, high, None)],
        "hovertext": [text for each in told for text in (each, each, each, "")],
        "hoverinfo": "text",
        "line": {"color": GREY, "width": 2, "dash": "dot"},
    }


def _steps(series: Series, word: Word) -> dict[str, Any]:
    name, color, symbol = _LOOKS[word]
    found = [change for change in series.changes if change.word == word]
    points = [series.points[change.step.place] for change in found]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": [change.step.place for change in found],
        "y": [point.value.value for point in points],
        "hovertext": [
            hover(when(point), change_text(change, series))
            for point, change in zip(points, found, strict=True)
        ],
        "hoverinfo": "text",
        "marker": {"color": color, "size": 14, "symbol": symbol},
    }


def _dates(points: Sequence[Point]) -> dict[str, Any]:
    """Return an axis with a place for each run, and the dates of some."""
    every = -(-len(points) // _MOST_DATES)
    places = range(0, len(points), every)
    return {
        "tickvals": list(places),
        "ticktext": [f"{points[place].created:%Y-%m-%d}" for place in places],
        "range": [-0.7, len(points) - 0.3],
        "showgrid": False,
        "zeroline": False,
    }


def _row(series: Series, place: int) -> list[str]:
    point = series.points[place]
    told = [change_text(change, series) for change in series.changes if change.step.place == place]
    told += [listed(each.facts, 8) for each in series.breaks if each.place == place]
    values = (point.value.value, point.value.low, point.value.high)
    return [
        one_line(point.run_id),
        f"{point.created:%Y-%m-%d %H:%M}",
        *(value_text(value, one_line(series.unit)) for value in values),
        str(point.value.n),
        "; ".join(told) or "–",
    ]


def _value(series: Series, point: Point) -> str:
    return value_text(point.value.value, one_line(series.unit))


def _trials(point: Point) -> str:
    return "1 trial" if point.value.n == 1 else f"median of {point.value.n} trials"


def _finite(length: float) -> float:
    """Return *length*, or the largest number: the range of two numbers may be none that JSON has."""
    return min(length, sys.float_info.max)
