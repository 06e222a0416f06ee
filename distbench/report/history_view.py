"""One metric over runs, as a table for the terminal and the page, and as JSON."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from distbench.analysis.change_points import CHANCE, LEAST_POINTS
from distbench.analysis.history import Break, Change, Occasion, Point, Series, history
from distbench.analysis.names import short_names
from distbench.analysis.text import listed, one_line
from distbench.report.tables import Table
from distbench.units import value_text

_MOST_TOLD = 10
_LARGEST_TOLD = 1000.0
_WORDS = {"better": "better", "worse": "worse", "other": "neither better nor worse"}


@dataclass(frozen=True)
class History:
    """One metric of all cases, ready to be shown."""

    metric: str
    least: float
    """The smallest step that is told, as a fraction."""
    occasions: Sequence[Occasion]
    series: list[Series]
    names: dict[str, str]
    """Case id -> what a series is called; no two are called alike."""

    @classmethod
    def of(cls, occasions: Sequence[Occasion], metric: str, least: float) -> History:
        """Return what *occasions* tell of *metric*."""
        series = history(occasions, metric, least)
        return cls(metric, least, occasions, series, _names(series))


def table(made: History) -> Table:
    """Return a row for each case, and what changed when."""
    headings = ("case", "runs", "first", "now", "breaks", "steps", "last step")
    rows = tuple((made.names[each.case.id], *_cells(each)) for each in made.series)
    return Table("history", f"{title(made)} over runs", _caption(made), headings, rows, (*sentences(made),))


def title(made: History) -> str:
    """Return the metric with its unit and the direction of better: ``step_s (s, lower is better)``."""
    last = made.series[-1] if made.series else None
    told = (
        [one_line(last.unit), f"{last.better} is better" if last.better in ("higher", "lower") else ""]
        if last
        else []
    )
    more = ", ".join(each for each in told if each)
    return one_line(made.metric) + (f" ({more})" if more else "")


def sentences(made: History) -> list[str]:
    """Return what to know of a history: the steps, the breaks, and what they rest on."""
    said = [_count(made)]
    for each in made.series:
        said += [f"{made.names[each.case.id]}: {sentence}." for sentence in step_sentences(each)]
    return [*said, *_breaks(made), *_left_out(made)]


def step_sentences(series: Series) -> list[str]:
    """Return what is to be said of each step within one environment, without the name of the case."""
    ends = {level.start: level.end for level in series.levels}
    starts = {level.end: level.start for level in series.levels}
    return [
        f"{change_text(change, series)} from run {when(series.points[place])} on; "
        f"{place - starts[place]} runs before, {ends[place] - place} after"
        for change in series.changes
        for place in [change.step.place]
    ]


def break_sentences(series: Series) -> list[str]:
    """Return what is to be said of each break, without the name of the case."""
    return [
        f"environment changed before run {when(series.points[each.place])}: {listed(each.facts, 8)}; "
        f"with it {_at(each)}"
        for each in series.breaks
    ]


def change_text(change: Change, series: Series) -> str:
    """Return a change in words: by how much, from what to what, and whether that is good."""
    before, after = (value_text(v, one_line(series.unit)) for v in (change.step.before, change.step.after))
    told = f"{effect_text(change)}, {_WORDS[change.word]}, from {before} to {after}"
    return f"{one_line(series.metric)} {told}"


def effect_text(change: Change) -> str:
    """Return the size of a change with its sign: ``-10.2%``."""
    effect = change.step.effect
    return f"{effect:+.1%}" if abs(effect) < _LARGEST_TOLD else "beyond all measure"


def when(point: Point) -> str:
    """Return a run with its date."""
    return f"{one_line(point.run_id)} ({point.created:%Y-%m-%d})"


def to_json(made: History) -> dict[str, Any]:
    """Return what ``history --json`` prints; null for what is not known or not finite."""
    return {
        "metric": made.metric,
        "least": made.least,
        "runs": len(made.occasions),
        "series": [_series_json(each) for each in made.series],
    }


def _series_json(series: Series) -> dict[str, Any]:
    return {
        "case": series.case.name,
        "case_id": series.case.id,
        "unit": series.unit,
        "better": series.better,
        "points": [_point_json(point) for point in series.points],
        "breaks": [
            {
                **_place_json(series, each.place),
                "facts": list(each.facts),
                "change": _change_json(series, each.change) if each.change else None,
                "known": each.is_known,
            }
            for each in series.breaks
        ],
        "steps": [_change_json(series, change) for change in series.changes],
        "levels": [dataclasses.asdict(level) for level in series.levels],
        "left_out": [{"run_id": run, "why": why} for run, why in series.left_out],
    }


def _point_json(point: Point) -> dict[str, Any]:
    found = point.value
    return {
        "run_id": point.run_id,
        "created": point.created.isoformat(),
        "value": found.value,
        "low": found.low,
        "high": found.high,
        "trials": found.n,
    }


def _place_json(series: Series, place: int) -> dict[str, Any]:
    return {"place": place, "run_id": series.points[place].run_id}


def _change_json(series: Series, change: Change) -> dict[str, Any]:
    step = change.step
    return {
        **_place_json(series, step.place),
        "before": step.before,
        "after": step.after,
        "effect": step.effect if math.isfinite(step.effect) else None,
        "chance": step.chance,
        "word": change.word,
    }


def _caption(made: History) -> str:
    return (
        "Each run is one point, the median over its trials; a break is where the environment changed, and "
        f"steps are looked for between breaks only, with {LEAST_POINTS} runs or more on each side and of "
        f"{100 * made.least:.3g} % or more. A step is told if noise and slow drift would make one as clear "
        f"in fewer than {1000 * CHANCE:.0f} of 1,000 histories. This is a monitor: it takes several runs to "
        "see a step, and arms that are run side by side (distbench gate) to stop one."
    )


def _cells(series: Series) -> tuple[str, ...]:
    # the others stand in the title, and two more words a cell are many
    unit = series.unit if series.unit in ("B", "s") else ""
    first, last = (value_text(series.levels[i].value, unit) for i in (0, -1))
    counts = [str(len(each)) if each else "–" for each in (series.breaks, series.changes)]
    last_step = f"{effect_text(series.changes[-1])} {series.changes[-1].word}" if series.changes else "–"
    return (str(len(series.points)), first, last, *counts, last_step)


def _names(series: Sequence[Series]) -> dict[str, str]:
    names = short_names([each.case for each in series])
    count = Counter(names.values())
    return {id_: name if count[name] == 1 else f"{name} ({id_})" for id_, name in names.items()}


def _count(made: History) -> str:
    if not made.series:
        return f"No run has a number of {one_line(made.metric)} that counts."
    changed = sum(bool(each.changes) for each in made.series)
    dates = sorted(point.created for each in made.series for point in each.points)
    said = (
        f"{_counted(len(made.series), 'case')} in {_counted(len(made.occasions), 'run')}, "
        f"{dates[0]:%Y-%m-%d} to {dates[-1]:%Y-%m-%d}: {changed} with a step that noise and "
        "drift don't explain."
    )
    short = sum(not any(b - a >= 2 * LEAST_POINTS for a, b in _environments(each)) for each in made.series)
    if short:
        said += f" Of {short} no step could be told yet: it takes {2 * LEAST_POINTS} runs in one environment."
    return said


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _environments(series: Series) -> list[tuple[int, int]]:
    ends = [0, *(each.place for each in series.breaks), len(series.points)]
    return list(pairwise(ends))


def _breaks(made: History) -> list[str]:
    """Return a sentence for each break; one that is of many cases is told once."""
    found: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for series in made.series:
        for each in series.breaks:
            key = when(series.points[each.place]), each.facts
            found.setdefault(key, []).append(f"{made.names[series.case.id]} {_at(each)}")
    told = [
        f"Environment changed before run {run}: {listed(facts, 8)}. With it: {listed(cases, 8)}."
        for (run, facts), cases in found.items()
    ]
    left = len(told) - _MOST_TOLD
    return told[-_MOST_TOLD:] + (
        [f"{left} earlier breaks are in the JSON and on the page."] if left > 0 else []
    )


def _at(found: Break) -> str:
    if found.change:
        return f"{effect_text(found.change)} ({found.change.word})"
    return "no change that can be told" if found.is_known else "unknown, too few runs on one side"


def _left_out(made: History) -> list[str]:
    found: dict[str, dict[str, None]] = {}
    for series in made.series:
        for run, why in series.left_out:
            found.setdefault(why, {})[f"{made.names[series.case.id]} in {one_line(run)}"] = None
    return [f"Not counted: {why} ({listed(list(where))})." for why, where in found.items()]
