"""What all changes of a case since a run add up to: steps, and what creeps without any.

A run is pinned as the older baseline. Ten changes of 2% are no step each, and the noise of the runs between
them hides every one; from the first to the last they are 18%.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from distbench.analysis.comparison import direction
from distbench.analysis.history import CaseHistory, LevelChange
from distbench.analysis.statistics import change_points
from distbench.analysis.statistics.change_points import Step


@dataclass(frozen=True)
class Since:
    """All changes of one case since a run, added up."""

    place: int
    """Index of its first point: that run's, or the first after it in the environment of the last."""
    change: LevelChange | None
    """None if it is within the noise."""
    is_known: bool
    """Whether there are enough points to see one."""


def since(series: CaseHistory, start: datetime, least: float) -> Since | None:
    """What changed in *series* since *start*, in the environment of the last run; None: no run since.

    The level before the first step against that after the last; without a step, the ends of a straight line.
    *least* is the smallest change that is reported, as a fraction.
    """
    later = [place for place, point in enumerate(series.points) if point.created >= start]
    if not later:
        return None
    place = max(later[0], *(each.place for each in series.breaks), 0)
    step = _all(series, place)
    if step is None:
        return Since(place, None, is_known=False)
    is_clear = step.chance <= change_points.CHANCE and abs(step.effect) >= least
    word = direction(step.before, step.after, series.better)
    return Since(place, LevelChange(step, word) if is_clear else None, is_known=True)


def _all(series: CaseHistory, place: int) -> Step | None:
    steps = [each.step for each in series.changes if each.step.place > place]
    if not steps:
        found = change_points.trend(series.values[place:])
        return replace(found, place=place) if found else None
    before = change_points.level(series.values[place : steps[0].place])
    after = change_points.level(series.values[steps[-1].place :])
    return Step(place, before, after, max(each.chance for each in steps))
