"""Offline page of metrics over runs: a chart per case, with level shifts and environment changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from distbench.analysis.comparison import ChangeDirection
from distbench.analysis.history import CaseHistory, HistoryPoint
from distbench.core.text import join_limited, one_line
from distbench.core.units import format_value
from distbench.report import html
from distbench.report.history import MetricHistory, history_table, history_title
from distbench.report.history_sentences import (
    change_text,
    environment_change_sentences,
    run_label,
    shift_sentences,
    split_sentences,
)
from distbench.report.html import Chapter
from distbench.system.files import infrastructure_errors, write_atomic
from distbench.tables.table import Field, Table, TableCell, TableRow
from distbench.views.charts.figures import GREY, CaseStyle, Chart, error_bars, hover, make_figure, scatter
from distbench.views.charts.palette import VERDICTS

_MAX_CASES = 60
"""Maximum number of charts of a metric; the table has all cases."""
_MAX_DATES = 8
_MAX_CHANGES = 4
_FARTHEST = 1e300
"""Farthest end of a line from 0."""
_LOOKS: dict[ChangeDirection, tuple[str, str]] = {
    "worse": ("step, worse", "triangle-down"),
    "better": ("step, better", "triangle-up"),
    "other": ("step", "diamond"),
}


def write(made: Sequence[MetricHistory], skipped: Sequence[str], file: Path) -> None:
    """Write the page of *made*, one section per metric, to *file*; *skipped* lists unreadable runs.

    Raises:
        InfrastructureError: the file can't be written.
    """
    parts = [(one_line(each.metric), _chapter(each, number)) for number, each in enumerate(made, 1)]
    page = html.render("history.html", [chapter for _, chapter in parts], parts=parts, skipped=skipped)
    with infrastructure_errors(file):
        write_atomic(file, page)


def _chapter(made: MetricHistory, number: int) -> Chapter:
    # readers look for changes first
    ordered = sorted(made.histories, key=lambda each: (not each.shifts, not each.environment_changes))
    charts = [_chart(each, made, f"history-{number}-{i}") for i, each in enumerate(ordered[:_MAX_CASES], 1)]
    behind = history_table(made)
    if len(ordered) > _MAX_CASES:
        cut = f" Only {_MAX_CASES} of {len(ordered):,} cases are shown, those with level shifts first."
        behind = replace(behind, caption=behind.caption + cut)
    return Chapter(f"history-{number}", f"{one_line(made.metric)}: case by case", charts, behind)


def _chart(series: CaseHistory, made: MetricHistory, id_: str) -> Chart:
    look = CaseStyle.for_cases(made.histories).marker(series.case.strategy.name)
    steps = shift_sentences(series) or ["no significant level shift"]
    # of nightly environment changes, the thirtieth adds nothing
    changes = environment_change_sentences(series)[-_MAX_CHANGES:]
    findings = [*steps, *changes, *split_sentences(series, made.splits[series.case.id])]
    return Chart(
        id_,
        made.names[series.case.id],
        "Each mark is a run, bars the range of its trials; lines are the levels between shifts, dotted "
        "lines mark changes of the environment.",
        make_figure(
            _traces(series, look), "run", history_title(made), xaxis=_dates(series.points), showlegend=True
        ),
        _points(series),
        finding=" ".join(f"{sentence[0].upper()}{sentence[1:]}." for sentence in findings),
    )


def _traces(series: CaseHistory, look: dict[str, Any]) -> list[dict[str, Any]]:
    traces = [
        _runs(series, look),
        _segments(series, look),
        *([_environment_changes(series)] if series.environment_changes else []),
    ]
    return traces + [
        _shifts(series, word)
        for word in _LOOKS
        if any(series.direction(each) == word for each in series.shifts)
    ]


def _runs(series: CaseHistory, look: dict[str, Any]) -> dict[str, Any]:
    values = [point.value for point in series.points]
    texts = [format_value(value.value, one_line(series.unit)) for value in values]
    trials = [
        "1 trial" if value.trial_count == 1 else f"median of {value.trial_count} trials" for value in values
    ]
    return scatter(
        "run",
        range(len(values)),
        [value.value for value in values],
        hovers=map(hover, map(run_label, series.points), texts, trials),
        error_y=error_bars([(value.low, value.value, value.high) for value in values]),
        marker={**look, "size": 7},
    )


def _segments(series: CaseHistory, look: dict[str, Any]) -> dict[str, Any]:
    """The levels as one line with gaps."""
    places = [x for level in series.segments for x in (level.start - 0.4, level.end - 0.6, None)]
    heights = [y for level in series.segments for y in (level.value, level.value, None)]
    line = {"color": look["color"], "width": 2}
    return scatter("level", places, heights, "lines", hoverinfo="skip", line=line)


def _environment_changes(series: CaseHistory) -> dict[str, Any]:
    """The environment changes as one vertical line with gaps; its middle shows the changed facts."""
    # plotly fails to draw a line if the difference of its ends overflows
    low = max(min(point.value.low for point in series.points), -_FARTHEST)
    high = min(max(point.value.high for point in series.points), _FARTHEST)
    if low == high:
        low = low - abs(low) / 20 if low else -1.0
    name = "environment changed"
    return scatter(
        name,
        [x for each in series.environment_changes for x in (*[each.place - 0.5] * 3, None)],
        [low, low / 2 + high / 2, high, None] * len(series.environment_changes),
        "lines",
        [text for each in series.environment_changes for text in (*[hover(name, *each.facts[:8])] * 3, "")],
        line={"color": GREY, "width": 2, "dash": "dot"},
    )


def _shifts(series: CaseHistory, word: ChangeDirection) -> dict[str, Any]:
    name, symbol = _LOOKS[word]
    changes = [change for change in series.shifts if series.direction(change) == word]
    points = [series.points[change.place] for change in changes]
    texts = [change_text(change, series) for change in changes]
    return scatter(
        name,
        [change.place for change in changes],
        [point.value.value for point in points],
        hovers=[hover(run_label(point), text) for point, text in zip(points, texts, strict=True)],
        marker={"color": VERDICTS[word], "size": 14, "symbol": symbol},
    )


def _dates(points: Sequence[HistoryPoint]) -> dict[str, Any]:
    """Axis with a position for each run, and the dates of some."""
    every = -(-len(points) // _MAX_DATES)
    places = range(0, len(points), every)
    return {
        "tickvals": list(places),
        "ticktext": [f"{points[place].created:%Y-%m-%d}" for place in places],
        "range": [-0.7, len(points) - 0.3],
        "showgrid": False,
        "zeroline": False,
    }


def _points(series: CaseHistory) -> Table:
    unit = one_line(series.unit)
    fields = (
        Field("run_id", "run", "Id of the run.", type="varchar"),
        Field("created", "made", "When it was started.", type="varchar"),
        *(
            Field(name, name, f"{name.capitalize()} over the trials.", unit)
            for name in ("value", "lowest", "highest")
        ),
        Field("trials", "trials", "Trials.", type="bigint"),
        Field("changes", "from here on", "Level shifts and changes of the environment.", type="varchar"),
    )
    rows = tuple(_point(series, place, point) for place, point in enumerate(series.points))
    return Table("", "", fields, rows)


def _point(series: CaseHistory, place: int, point: HistoryPoint) -> TableRow:
    changes = [change_text(change, series) for change in series.shifts if change.place == place]
    changes += [join_limited(each.facts, 8) for each in series.environment_changes if each.place == place]
    return TableRow(
        {
            "run_id": point.run_id,
            "created": f"{point.created:%Y-%m-%d %H:%M}",
            "value": point.value.value,
            "lowest": point.value.low,
            "highest": point.value.high,
            "trials": point.value.trial_count,
            "changes": TableCell("; ".join(changes) or None, "; ".join(changes)),
        }
    )
