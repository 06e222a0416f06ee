"""Sentences on the history of a metric: level shifts, environment changes, cumulative change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from distbench.analysis.change_attribution import Attribution
from distbench.analysis.cumulative_change import CumulativeChange
from distbench.analysis.history import CaseHistory, EnvironmentChange, HistoryPoint
from distbench.analysis.statistics.change_points import MIN_POINTS, LevelShift
from distbench.core.text import join_limited, one_line
from distbench.core.units import format_count, format_value

_MAX_SHOWN_EFFECT = 1000.0


def shift_sentences(series: CaseHistory) -> list[str]:
    """Sentence for each level shift within one environment, without the name of the case."""
    ends = {level.start: level.end for level in series.segments}
    starts = {level.end: level.start for level in series.segments}
    return [
        f"{change_text(change, series)} from run {run_label(series.points[place])} on; "
        f"{place - starts[place]} runs before, {ends[place] - place} after"
        for change in series.shifts
        for place in [change.place]
    ]


def split_sentences(series: CaseHistory, splits: Mapping[int, Attribution]) -> list[str]:
    """Sentence for each shift that runs with a probe are on both sides of, without the name of the case.

    *splits* are by the index of the first point after the shift.
    """
    return [
        f"from run {run_label(series.points[place])} on, "
        + (
            f"the change can't be attributed to machine or code: {one_line(split)}"
            if isinstance(split, str)
            else split.sentence()
        )
        for place, split in splits.items()
    ]


def environment_change_sentences(series: CaseHistory) -> list[str]:
    """Sentence for each environment change, without the name of the case."""
    return [
        f"environment changed before run {run_label(series.points[each.place])}: "
        f"{join_limited(each.facts, 8)}; with it {environment_change_text(each, series)}"
        for each in series.environment_changes
    ]


def cumulative_sentences(
    every: Sequence[CaseHistory],
    names: Mapping[str, str],
    since: Mapping[str, CumulativeChange | None],
    day: datetime,
) -> list[str]:
    """Total changes since that day, and the cases for which they are unknown.

    *names* and *since* are by case id.
    """
    clear, steady, short, absent = [], [], [], []
    for series in every:
        name, found = names[series.case.id], since[series.case.id]
        if found is None:
            absent.append(name)
        elif not found.is_testable:
            short.append(name)
        elif found.change is None:
            steady.append(name)
        else:
            runs = format_count(len(series.points) - found.place, "run")
            first = run_label(series.points[found.place])
            clear.append(f"{name}: {change_text(found.change, series)}, in total since run {first}, {runs}.")
    reasons = {
        f"No measurable change in total since {day:%Y-%m-%d}": steady,
        f"Too few runs since {day:%Y-%m-%d} to add up changes ({2 * MIN_POINTS} in the environment of the "
        "last are needed)": short,
        f"No run since {day:%Y-%m-%d}": absent,
    }
    return [*clear, *(f"{reason}: {join_limited(cases)}." for reason, cases in reasons.items() if cases)]


def change_text(change: LevelShift, series: CaseHistory) -> str:
    """A change in words: its size, both levels, and whether it is an improvement."""
    before, after = (format_value(v, one_line(series.unit)) for v in (change.before, change.after))
    direction = series.direction(change)
    word = "neither better nor worse" if direction == "other" else direction
    return f"{one_line(series.metric)} {effect_text(change)}, {word}, from {before} to {after}"


def effect_text(change: LevelShift) -> str:
    """Size of a change with its sign: ``-10.2%``."""
    effect = change.effect
    return f"{effect:+.1%}" if abs(effect) < _MAX_SHOWN_EFFECT else "more than 1000x"


def run_label(point: HistoryPoint) -> str:
    """A run with its date."""
    return f"{one_line(point.run_id)} ({point.created:%Y-%m-%d})"


def environment_change_text(place: EnvironmentChange, series: CaseHistory) -> str:
    """Shift that came with a change of environment: ``-10.2% (worse)``."""
    if place.shift:
        return f"{effect_text(place.shift)} ({series.direction(place.shift)})"
    return "no measurable change" if place.is_testable else "unknown, too few runs on one side"
