"""Shifts of a case over runs, each split into the machine's part and the rest by the probes of runs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from distbench.analysis.case_summary import THROUGHPUT
from distbench.analysis.change_attribution import Attribution, attribute_change
from distbench.analysis.comparison import STEP
from distbench.analysis.history import CaseHistory, HistoryRun, LevelSegment
from distbench.analysis.statistics.change_points import LevelShift
from distbench.analysis.statistics.intervals import CONFIDENCE, ConfidenceInterval


def shift_attributions(series: CaseHistory, runs: Sequence[HistoryRun]) -> dict[int, Attribution]:
    """Split of the step's change at each shift of *series*, by the index of the first point after it.

    Of the *runs*, those with the nearest probe before and after the shift count; a shift without both has no
    split, nor has a metric that is no time of a step.
    """
    shifts = [*series.shifts, *(each.shift for each in series.environment_changes if each.shift)]
    is_time = series.metric in (STEP, THROUGHPUT)
    found = ((shift.place, _split(series, runs, shift)) for shift in shifts if is_time)
    return dict(sorted((place, split) for place, split in found if split is not None))


def _split(series: CaseHistory, runs: Sequence[HistoryRun], shift: LevelShift) -> Attribution | None:
    left = next(level for level in series.segments if level.end == shift.place)
    right = next(level for level in series.segments if level.start == shift.place)
    probed = {(run.run_id, run.created): run for run in runs if run.probes}
    keys = [(point.run_id, point.created) for point in series.points]
    before = next((probed[key] for key in reversed(keys[left.start : left.end]) if key in probed), None)
    after = next((probed[key] for key in keys[right.start : right.end] if key in probed), None)
    times = (shift.before, shift.after) if series.metric == STEP else (shift.after, shift.before)
    if before is None or after is None or min(times) <= 0:
        return None
    case, step = series.case, ConfidenceInterval(times[1] / times[0], _half_log_width(series, left, right))
    facts = before.environments[case.id].differences_from(after.environments[case.id])
    return attribute_change(case, step, before.probes, after.probes, facts)


def _half_log_width(series: CaseHistory, left: LevelSegment, right: LevelSegment) -> float | None:
    """Half the width of the interval of the log ratio of two levels; None: how runs vary is unknown."""
    variance = series.run_variance
    if variance is None:
        return None
    # that of two runs, of which levels are the means of several
    runs = [level.end - level.start for level in (left, right)]
    return variance.half_log_width(CONFIDENCE) * math.sqrt(sum(1 / each for each in runs) / 2)
