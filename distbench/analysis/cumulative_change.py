"""Total change of a case since a given run: shifts, and drift without any shift.

The run is pinned as the older baseline. None of ten changes of 2% is a detectable shift, and the noise of
the runs between them hides each; from the first to the last they add up to 18%.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from distbench.analysis.history import CaseHistory
from distbench.analysis.statistics import change_points
from distbench.analysis.statistics.change_points import LevelShift


@dataclass(frozen=True)
class CumulativeChange:
    """Sum of all changes of one case since a run."""

    place: int
    """Index of its first point: that run's, or the first after it in the environment of the last run."""
    change: LevelShift | None
    """None if within the noise."""
    is_testable: bool
    """True if there are enough points to detect a change."""


def cumulative_change(series: CaseHistory, start: datetime, min_shift: float) -> CumulativeChange | None:
    """Change of *series* since *start*, in the environment of the last run; None if no run is as recent.

    Compares the level before the first shift with that after the last; without a shift, the ends of a
    straight line. *min_shift* is the smallest change that is reported, as a fraction.
    """
    later = [place for place, point in enumerate(series.points) if point.created >= start]
    if not later:
        return None
    place = max(later[0], *(each.place for each in series.environment_changes), 0)
    step = _total_shift(series, place)
    if step is None:
        return CumulativeChange(place, None, is_testable=False)
    is_clear = step.chance <= change_points.FALSE_ALARM_RATE and abs(step.effect) >= min_shift
    return CumulativeChange(place, step if is_clear else None, is_testable=True)


def _total_shift(series: CaseHistory, place: int) -> LevelShift | None:
    steps = [each for each in series.shifts if each.place > place]
    if not steps:
        found = change_points.fit_trend(series.values[place:])
        return replace(found, place=place) if found else None
    before = change_points.segment_level(series.values[place : steps[0].place])
    after = change_points.segment_level(series.values[steps[-1].place :])
    return LevelShift(place, before, after, max(each.chance for each in steps))
