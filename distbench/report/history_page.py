"""Metrics over runs as one offline page: a chart a case, with its breaks and steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from distbench.analysis.comparison import Direction
from distbench.analysis.history import CaseHistory, HistoryPoint
from distbench.core.text import listed, one_line
from distbench.core.units import value_text
from distbench.report import html
from distbench.report.figures import GREY, Chart, Style, drawn, errors, hover, scatter
from distbench.report.history_view import History, sheet, title
from distbench.report.history_words import break_sentences, change_text, step_sentences, when
from distbench.report.palette import VERDICTS
from distbench.report.view import Chapter
from distbench.system.files import write_whole, writing
from distbench.tables.table import Cell, Field, Row, Sheet

_MOST = 60
"""Charts of a metric; the table has all cases."""
_MOST_DATES = 8
_MOST_TOLD = 4
_LOOKS: dict[Direction, tuple[str, str]] = {
    "worse": ("step, worse", "triangle-down"),
    "better": ("step, better", "triangle-up"),
    "other": ("step", "diamond"),
}


def write(made: Sequence[History], skipped: Sequence[str], file: Path) -> None:
    """Write the page of *made*, one part a metric, to *file*; *skipped* tells of runs that can't be read.

    Raises:
        InfrastructureError: the file can't be written.
    """
    parts = [(one_line(each.metric), _chapter(each, number)) for number, each in enumerate(made, 1)]
    page = html.render("history.html", [chapter for _, chapter in parts], parts=parts, skipped=skipped)
    with writing(file):
        write_whole(file, page)


def _chapter(made: History, number: int) -> Chapter:
    # what changed is looked for first
    ordered = sorted(made.series, key=lambda each: (not each.changes, not each.breaks))
    charts = [_chart(each, made, f"history-{number}-{i}") for i, each in enumerate(ordered[:_MOST], 1)]
    behind = sheet(made)
    if len(ordered) > _MOST:
        cut = f" Drawn are {_MOST} of {len(ordered):,} cases, those with steps first."
        behind = replace(behind, caption=behind.caption + cut)
    return Chapter(f"history-{number}", f"{one_line(made.metric)}: case by case", charts, behind)


def _chart(series: CaseHistory, made: History, id_: str) -> Chart:
    look = Style.of(made.series).marker(series.case.strategy.name)
    steps = step_sentences(series) or ["no step that noise and drift don't explain"]
    # a break each night says nothing more by its thirtieth
    findings = [*steps, *break_sentences(series)[-_MOST_TOLD:]]
    return Chart(
        id_,
        made.names[series.case.id],
        "Each mark is a run, bars the range of its trials; lines are the levels between steps, dotted lines "
        "where the environment changed.",
        drawn(_traces(series, look), "run", title(made), xaxis=_dates(series.points), showlegend=True),
        _points(series),
        finding=" ".join(f"{sentence[0].upper()}{sentence[1:]}." for sentence in findings),
    )


def _traces(series: CaseHistory, look: dict[str, Any]) -> list[dict[str, Any]]:
    traces = [_runs(series, look), _levels(series, look), *([_breaks(series)] if series.breaks else [])]
    return traces + [_steps(series, word) for word in _LOOKS if any(c.word == word for c in series.changes)]


def _runs(series: CaseHistory, look: dict[str, Any]) -> dict[str, Any]:
    values = [point.value for point in series.points]
    texts = [value_text(value.value, one_line(series.unit)) for value in values]
    trials = ["1 trial" if value.n == 1 else f"median of {value.n} trials" for value in values]
    return scatter(
        "run",
        range(len(values)),
        [value.value for value in values],
        hovers=map(hover, map(when, series.points), texts, trials),
        error_y=errors([(value.low, value.value, value.high) for value in values]),
        marker={**look, "size": 7},
    )


def _levels(series: CaseHistory, look: dict[str, Any]) -> dict[str, Any]:
    """The levels as one line with gaps."""
    places = [x for level in series.levels for x in (level.start - 0.4, level.end - 0.6, None)]
    heights = [y for level in series.levels for y in (level.value, level.value, None)]
    line = {"color": look["color"], "width": 2}
    return scatter("level", places, heights, "lines", hoverinfo="skip", line=line)


def _breaks(series: CaseHistory) -> dict[str, Any]:
    """The breaks as one upright line with gaps; its middle says what changed."""
    low = min(point.value.low for point in series.points)
    high = max(point.value.high for point in series.points)
    if low == high:
        low = low - abs(low) / 20 if low else -1.0
    name = "environment changed"
    return scatter(
        name,
        [x for each in series.breaks for x in (*[each.place - 0.5] * 3, None)],
        [low, low / 2 + high / 2, high, None] * len(series.breaks),
        "lines",
        [text for each in series.breaks for text in (*[hover(name, *each.facts[:8])] * 3, "")],
        line={"color": GREY, "width": 2, "dash": "dot"},
    )


def _steps(series: CaseHistory, word: Direction) -> dict[str, Any]:
    name, symbol = _LOOKS[word]
    changes = [change for change in series.changes if change.word == word]
    points = [series.points[change.step.place] for change in changes]
    texts = [change_text(change, series) for change in changes]
    return scatter(
        name,
        [change.step.place for change in changes],
        [point.value.value for point in points],
        hovers=[hover(when(point), text) for point, text in zip(points, texts, strict=True)],
        marker={"color": VERDICTS[word], "size": 14, "symbol": symbol},
    )


def _dates(points: Sequence[HistoryPoint]) -> dict[str, Any]:
    """An axis with a place for each run, and the dates of some."""
    every = -(-len(points) // _MOST_DATES)
    places = range(0, len(points), every)
    return {
        "tickvals": list(places),
        "ticktext": [f"{points[place].created:%Y-%m-%d}" for place in places],
        "range": [-0.7, len(points) - 0.3],
        "showgrid": False,
        "zeroline": False,
    }


def _points(series: CaseHistory) -> Sheet:
    unit = one_line(series.unit)
    fields = (
        Field("run_id", "run", "Id of the run.", type="varchar"),
        Field("created", "made", "When it was started.", type="varchar"),
        *(
            Field(name, name, f"{name.capitalize()} over the trials.", unit)
            for name in ("value", "lowest", "highest")
        ),
        Field("trials", "trials", "Trials.", type="bigint"),
        Field("changes", "from here on", "Steps and changes of environment.", type="varchar"),
    )
    rows = tuple(_point(series, place, point) for place, point in enumerate(series.points))
    return Sheet("", "", fields, rows)


def _point(series: CaseHistory, place: int, point: HistoryPoint) -> Row:
    changes = [change_text(change, series) for change in series.changes if change.step.place == place]
    changes += [listed(each.facts, 8) for each in series.breaks if each.place == place]
    return Row(
        {
            "run_id": point.run_id,
            "created": f"{point.created:%Y-%m-%d %H:%M}",
            "value": point.value.value,
            "lowest": point.value.low,
            "highest": point.value.high,
            "trials": point.value.n,
            "changes": Cell("; ".join(changes) or None, "; ".join(changes)),
        }
    )
