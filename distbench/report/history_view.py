"""One metric over runs, as a table for the terminal and the page, and as JSON."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

from distbench.analysis.case_names import short_names
from distbench.analysis.cumulative_change import Since, since
from distbench.analysis.history import CaseHistory, LevelChange, Occasion, history
from distbench.analysis.statistics.change_points import CHANCE, LEAST_POINTS
from distbench.core.grouping import gathered
from distbench.core.text import listed, one_line
from distbench.core.units import count_text, value_text
from distbench.report.history_words import break_text, effect_text, since_sentences, step_sentences, when
from distbench.report.view import CASE, case_cells
from distbench.tables.emphasis import OF_WORDS, Paint, unpainted
from distbench.tables.line_wrapping import folded
from distbench.tables.table import Cell, Field, Row, Sheet

_MOST_TOLD = 10


@dataclass(frozen=True)
class History:
    """One metric of all cases, ready to be shown."""

    metric: str
    least: float
    """The smallest step that is told, as a fraction."""
    occasions: Sequence[Occasion]
    series: list[CaseHistory]
    names: dict[str, str]
    """Case id -> what a series is called; no two are called alike."""
    start: datetime | None = None
    """When to add up all changes from; None: not asked for."""

    @property
    def since(self) -> dict[str, Since | None]:
        """Case id -> what all changes from ``start`` on add up to; None: no run since.

        Empty if not asked for.
        """
        start = self.start
        return {each.case.id: since(each, start, self.least) for each in self.series} if start else {}

    @classmethod
    def of(
        cls, occasions: Sequence[Occasion], metric: str, least: float, start: datetime | None = None
    ) -> History:
        """What *occasions* tell of *metric*, and of what all changes from *start* on add up to."""
        series = history(occasions, metric, least)
        names = short_names([each.case for each in series])
        count = Counter(names.values())
        distinct = {id_: name if count[name] == 1 else f"{name} ({id_})" for id_, name in names.items()}
        return cls(metric, least, occasions, series, distinct, start)


_FIELDS = (
    *CASE,
    Field("runs", "runs", "Runs with a usable value.", type="bigint"),
    Field("first", "first level", "Level of the first runs."),
    Field("now", "level now", "Level of the last runs."),
    Field("breaks", "breaks", "Changes of environment.", type="bigint"),
    Field("steps", "steps", "Changes of level within one environment.", type="bigint"),
    Field("last_step", "last step", "Size of the last step, as a fraction."),
    Field("last_word", "", "Whether the last step is better, worse or neither.", type="varchar"),
)
_SINCE = Field("since", "since", "All changes since the given run, added up, as a fraction.")


def sheet(made: History) -> Sheet:
    """A row for each case, and what changed when."""
    since = made.since
    rows = tuple(_row(each, made.names[each.case.id], since.get(each.case.id)) for each in made.series)
    fields = (*_FIELDS, _SINCE) if made.start else _FIELDS
    return Sheet(f"{title(made)} over runs", _caption(made), fields, rows, (*sentences(made, since),))


def text(made: History, width: int, paint: Paint = unpainted) -> str:
    """The table and what changed, or why there is nothing to compare."""
    if made.series and all(len(each.points) == 1 for each in made.series):
        lines = [f"{title(made)} over runs", *folded(_no_history(made), width)]
        return "\n".join([*lines, *(line for note in _left_out(made) for line in ["", *folded(note, width)])])
    return sheet(made).as_text(width, paint)


def _no_history(made: History) -> str:
    """Why there is none, in one sentence."""
    runs = len(made.occasions)
    lead = "One run has no history" if runs == 1 else f"No case is in two of these {runs} runs"
    return (
        f"{lead}: steps are looked for from {2 * LEAST_POINTS} runs of a case in the same environment on; "
        "distbench show RUN prints the numbers of one."
    )


def title(made: History) -> str:
    """The metric with its unit and the direction of better: ``step_s (s, lower is better)``."""
    if not made.series:
        return one_line(made.metric)
    last = made.series[-1]
    words = [one_line(last.unit), f"{last.better} is better" if last.better in ("higher", "lower") else ""]
    more = ", ".join(word for word in words if word)
    return one_line(made.metric) + (f" ({more})" if more else "")


def sentences(made: History, since: Mapping[str, Since | None]) -> list[str]:
    """What to know of a history: the steps, the breaks, what adds up, and what they rest on."""
    in_all = since_sentences(made.series, made.names, since, made.start) if made.start else []
    steps = [
        f"{made.names[series.case.id]}: {sentence}."
        for series in made.series
        for sentence in step_sentences(series)
    ]
    return [_count(made), *steps, *in_all, *_breaks(made), *_left_out(made)]


def to_json(made: History) -> dict[str, Any]:
    """What ``history --json`` prints; null for what is not known or not finite."""
    since = made.since
    return {
        "metric": made.metric,
        "least": made.least,
        "runs": len(made.occasions),
        "damaged": [
            {"run_id": each.run_id, **trial.to_json()} for each in made.occasions for trial in each.damaged
        ],
        "series": [_series_json(each, since.get(each.case.id)) for each in made.series],
    }


def _series_json(series: CaseHistory, since: Since | None) -> dict[str, Any]:
    return {
        "case": series.case.name,
        "case_id": series.case.id,
        "unit": series.unit,
        "better": series.better,
        "points": [
            {
                "run_id": point.run_id,
                "created": point.created.isoformat(),
                "value": point.value.value,
                "low": point.value.low,
                "high": point.value.high,
                "trials": point.value.n,
            }
            for point in series.points
        ],
        "breaks": [
            {
                "place": each.place,
                "run_id": series.points[each.place].run_id,
                "facts": list(each.facts),
                "change": _change_json(series, each.change) if each.change else None,
                "known": each.is_known,
            }
            for each in series.breaks
        ],
        "steps": [_change_json(series, change) for change in series.changes],
        "levels": [dataclasses.asdict(level) for level in series.levels],
        "left_out": [{"run_id": run, "why": why} for run, why in series.left_out],
        "since": _since_json(series, since) if since else None,
    }


def _since_json(series: CaseHistory, since: Since) -> dict[str, Any]:
    return {
        "place": since.place,
        "run_id": series.points[since.place].run_id,
        "change": _change_json(series, since.change) if since.change else None,
        "known": since.is_known,
    }


def _change_json(series: CaseHistory, change: LevelChange) -> dict[str, Any]:
    step = change.step
    return {
        **dataclasses.asdict(step),
        "run_id": series.points[step.place].run_id,
        "effect": step.effect if math.isfinite(step.effect) else None,
        "word": change.word,
    }


def _caption(made: History) -> str:
    steps = (
        "Each run is one point, the median over its trials (of memory, the largest); a break is where the "
        f"environment changed, and steps are looked for between breaks only, with {LEAST_POINTS} runs or "
        f"more on each side and of {100 * made.least:.3g}% or more."
    )
    added = (
        " since: what all changes add up to in the environment of the last run, the first level against the "
        "last or, where there is no step, along a straight line."
    )
    return (
        f"{steps}{added if made.start else ''} A change is reported if noise and drift would produce one "
        f"this clear in fewer than {1000 * CHANCE:.0f} of 1,000 histories. This is a monitor: it takes "
        "several runs to see a step; to stop one, run both versions side by side with distbench gate."
    )


def _row(series: CaseHistory, name: str, since: Since | None) -> Row:
    # the others are in the title, and two more words per cell are many
    unit = series.unit if series.unit in ("B", "s") else ""
    first, last = (series.levels[i].value for i in (0, -1))
    step = series.changes[-1] if series.changes else None
    in_all = since.change if since else None
    return Row(
        {
            **case_cells(series.case, name),
            "runs": len(series.points),
            "first": Cell(first, value_text(first, unit)),
            "now": Cell(last, value_text(last, unit)),
            "breaks": len(series.breaks) or None,
            "steps": len(series.changes) or None,
            "last_step": _change(step) if step else None,
            "last_word": step.word if step else None,
            "since": _change(in_all) if in_all else None,
        }
    )


def _change(change: LevelChange) -> Cell:
    text = f"{effect_text(change)} {change.word}"
    return Cell(change.step.effect, text, tone=OF_WORDS.get(change.word, ""))


def _count(made: History) -> str:
    if not made.series:
        return f"No usable {one_line(made.metric)}: no undisturbed run has one."
    changed = sum(bool(each.changes) for each in made.series)
    dates = sorted(point.created for each in made.series for point in each.points)
    sentence = (
        f"{count_text(len(made.series), 'case')} in {count_text(len(made.occasions), 'run')}, "
        f"{dates[0]:%Y-%m-%d} to {dates[-1]:%Y-%m-%d}: {changed} with a step that noise and "
        "drift don't explain."
    )
    needed = 2 * LEAST_POINTS
    if short := sum(_longest(series) < needed for series in made.series):
        sentence += (
            f" {count_text(short, 'case')} with too few runs; {needed} in the same environment are needed."
        )
    return sentence


def _longest(series: CaseHistory) -> int:
    """The most runs in one environment."""
    ends = [0, *(each.place for each in series.breaks), len(series.points)]
    return max(end - start for start, end in pairwise(ends))


def _breaks(made: History) -> list[str]:
    """A sentence for each break; one that many cases share is listed once."""
    breaks = gathered(
        ((when(series.points[each.place]), each.facts), f"{made.names[series.case.id]} {break_text(each)}")
        for series in made.series
        for each in series.breaks
    )
    lines = [
        f"Environment changed before run {run}: {listed(facts, 8)}. With it: {listed(cases, 8)}."
        for (run, facts), cases in breaks.items()
    ]
    earlier = f"{len(lines) - _MOST_TOLD} earlier breaks are in the JSON and on the page."
    return [*lines[-_MOST_TOLD:], *([earlier] if len(lines) > _MOST_TOLD else [])]


def _left_out(made: History) -> list[str]:
    places = gathered(
        (why, f"{made.names[series.case.id]} in {one_line(run)}")
        for series in made.series
        for run, why in series.left_out
    )
    return [f"Not counted: {why} ({listed(list(dict.fromkeys(of)))})." for why, of in places.items()]
