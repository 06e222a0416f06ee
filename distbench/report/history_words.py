"""What is said of a metric over runs: steps, changes of environment, and what adds up since a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from distbench.analysis.cumulative_change import Since
from distbench.analysis.history import Break, CaseHistory, HistoryPoint, LevelChange
from distbench.analysis.statistics.change_points import LEAST_POINTS
from distbench.core.text import listed, one_line
from distbench.core.units import count_text, value_text

_LARGEST_TOLD = 1000.0


def step_sentences(series: CaseHistory) -> list[str]:
    """What is to be said of each step within one environment, without the name of the case."""
    ends = {level.start: level.end for level in series.levels}
    starts = {level.end: level.start for level in series.levels}
    return [
        f"{change_text(change, series)} from run {when(series.points[place])} on; "
        f"{place - starts[place]} runs before, {ends[place] - place} after"
        for change in series.changes
        for place in [change.step.place]
    ]


def break_sentences(series: CaseHistory) -> list[str]:
    """What is to be said of each break, without the name of the case."""
    return [
        f"environment changed before run {when(series.points[each.place])}: {listed(each.facts, 8)}; "
        f"with it {break_text(each)}"
        for each in series.breaks
    ]


def since_sentences(
    every: Sequence[CaseHistory], names: Mapping[str, str], since: Mapping[str, Since | None], day: datetime
) -> list[str]:
    """What has changed in all since that day, and of which cases nothing can be said.

    *names* and *since* are by case id.
    """
    clear, steady, short, absent = [], [], [], []
    for series in every:
        name, found = names[series.case.id], since[series.case.id]
        if found is None:
            absent.append(name)
        elif not found.is_known:
            short.append(name)
        elif found.change is None:
            steady.append(name)
        else:
            runs = count_text(len(series.points) - found.place, "run")
            first = when(series.points[found.place])
            clear.append(f"{name}: {change_text(found.change, series)}, in all since run {first}, {runs}.")
    reasons = {
        f"No measurable change in all since {day:%Y-%m-%d}": steady,
        f"Too few runs since {day:%Y-%m-%d} to add up changes ({2 * LEAST_POINTS} in the environment of the "
        "last are needed)": short,
        f"No run since {day:%Y-%m-%d}": absent,
    }
    return [*clear, *(f"{reason}: {listed(cases)}." for reason, cases in reasons.items() if cases)]


def change_text(change: LevelChange, series: CaseHistory) -> str:
    """A change in words: by how much, from what to what, and whether that is good."""
    before, after = (value_text(v, one_line(series.unit)) for v in (change.step.before, change.step.after))
    word = "neither better nor worse" if change.word == "other" else change.word
    return f"{one_line(series.metric)} {effect_text(change)}, {word}, from {before} to {after}"


def effect_text(change: LevelChange) -> str:
    """The size of a change with its sign: ``-10.2%``."""
    effect = change.step.effect
    return f"{effect:+.1%}" if abs(effect) < _LARGEST_TOLD else "more than 1000x"


def when(point: HistoryPoint) -> str:
    """A run with its date."""
    return f"{one_line(point.run_id)} ({point.created:%Y-%m-%d})"


def break_text(place: Break) -> str:
    """What came with a change of environment: ``-10.2% (worse)``."""
    if place.change:
        return f"{effect_text(place.change)} ({place.change.word})"
    return "no measurable change" if place.is_known else "unknown, too few runs on one side"
