"""Compare two runs case by case, or strategy by strategy if their work differs.

The two runs may have been on different days, with different load from neighbours on the machine. If enough
other runs have the same case, the intervals include the variance between runs; otherwise only the variance
between the trials of one run. A comparison informs; a gate needs baseline and candidate side by side.

A larger model or a different batch is neither better nor worse. The ratios of such runs show how each
strategy handles it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from distbench.analysis.case_summary import (
    COMMUNICATION,
    LOSS,
    MEMORY,
    SPEED_COLUMNS,
    THROUGHPUT,
    CaseSummary,
)
from distbench.analysis.scaling import case_series
from distbench.analysis.settings import effective_settings, flatten_facts, setting_meaning, setting_text
from distbench.analysis.statistics.intervals import (
    CONFIDENCE,
    NO_EARLIER_RUNS,
    ConfidenceInterval,
    RunVariance,
    RunVariances,
    intervals,
)
from distbench.core.case import Case
from distbench.core.text import one_line

EFFICIENCY = "efficiency"
STEP = "step_s"
COMPARED_COLUMNS = (THROUGHPUT, EFFICIENCY, STEP, MEMORY, COMMUNICATION, LOSS)
"""Columns to compare if both runs have them; efficiency and step time follow from throughput."""
_MIN_CHANGE = 0.0005
"""A smaller change of a counted number would be displayed as 1.000; the gate detects it."""
# both are numbers of 16 digits, from the same window
_TOKEN_TOLERANCE = 1 + 1e-9
ChangeDirection = Literal["better", "worse", "other"]
ChangeWord = ChangeDirection | Literal["same", "unknown"]


@dataclass(frozen=True)
class MetricChange:
    """One number of one case in both runs."""

    column: str
    unit: str
    before: ConfidenceInterval
    after: ConfidenceInterval
    ratio: ConfidenceInterval
    """After divided by before."""
    word: ChangeWord
    """same: within the noise, or less than 0.05%; other: different, in a column without a
    better direction; unknown: not equal, and no case has a second trial to measure the noise."""
    run_degrees_of_freedom: int = 0
    """Degrees of freedom of the estimate of between-run variance; 0: there is none, so the interval is
    that of the trials alone."""


@dataclass(frozen=True)
class CasePair:
    """One case in both runs."""

    name: str
    before: CaseSummary | None
    after: CaseSummary | None
    incomparable: str = ""
    """Reason why its numbers may not be compared."""
    disturbed: str = ""
    """Reason why its times may not be compared, while other numbers may."""
    changes: tuple[MetricChange, ...] = ()
    notes: tuple[str, ...] = ()
    """Settings that differ and change the speed or the strategy, not the work; and ``disturbed``."""

    @property
    def id(self) -> str:
        """Id of the case in the second run, where names may repeat; empty if only the first has it."""
        return self.after.case.id if self.after else ""

    def change(self, column: str) -> MetricChange | None:
        """Change of *column*; None if unknown."""
        return next((change for change in self.changes if change.column == column), None)


def compare_cases(
    before: Sequence[CaseSummary], after: Sequence[CaseSummary], run_variances: RunVariances = NO_EARLIER_RUNS
) -> list[CasePair]:
    """Pair the cases of two runs in the order of the second; cases of the first alone come last.

    Cases are the same if their configuration is (equal ids); cases that share only their name are
    shown side by side and never compared. *run_variances* is the variance of other runs of them.
    """
    by_id = {row.case.id: row for row in before}
    by_name = {row.case.name: row for row in before}
    mates = [by_id.get(row.case.id) or by_name.get(row.case.name) for row in after]
    taken = {mate.case.id for mate in mates if mate}
    gone = [row for row in before if row.case.id not in taken]
    alone = [CasePair(row.case.name, row, None, "only in the first run") for row in gone]
    return with_changes([*map(_pair, mates, after), *alone], run_variances)


def _pair(before: CaseSummary | None, after: CaseSummary) -> CasePair:
    name = after.case.name
    if before is None:
        return CasePair(name, None, after, "only in the second run")
    if before.case.id != after.case.id:
        return CasePair(
            name,
            before,
            after,
            f"different configuration: {_configuration_difference(before.case, after.case)}",
        )
    work, notes = setting_differences(before, after)
    disturbed = _disturbed_reason(before, after)
    caveats = (f"Times are not compared: {disturbed}",) if disturbed else ()
    unusable = unusable_reason(before, after) or work
    return CasePair(name, before, after, unusable, disturbed, notes=(*caveats, *notes))


def _disturbed_reason(before: CaseSummary, after: CaseSummary) -> str:
    """Reason why noise voids the times of one of the two; it does not change losses, bytes and memory."""
    noisy = ((row.degraded, which) for row, which in ((before, "first"), (after, "second")) if row.degraded)
    return next(
        (f"measured on a noisy machine in the {which} run: {one_line(why)}" for why, which in noisy), ""
    )


def unusable_reason(before: CaseSummary, after: CaseSummary) -> str:
    """Reason why one of the two has no usable numbers."""
    for row, which in ((before, "first"), (after, "second")):
        if not row.measured:
            reason = f": {one_line(row.reason)}" if row.reason else ""
            return f"{row.status} in the {which} run{reason}"
        if row.differs:
            return f"not equivalent to its reference in the {which} run"
    return ""


def _configuration_difference(before: Case, after: Case) -> str:
    """First options in which two cases differ."""
    old, new = flatten_facts(before.to_json()), flatten_facts(after.to_json())
    different = [key for key in new if old.get(key) != new[key] and key not in ("name", "label")]
    return ", ".join(f"{key} = {new[key]}, was {old.get(key, 'not set')}" for key in different[:3])


def setting_differences(before: CaseSummary, after: CaseSummary) -> tuple[str, tuple[str, ...]]:
    """Engine settings that differ: one that makes the work different, and all others."""
    if before.representative_trial is None or after.representative_trial is None:
        return "", ()
    old, new = effective_settings(before.representative_trial), effective_settings(after.representative_trial)
    work: list[str] = []
    notes: list[str] = []
    for key in sorted({*old, *new}):
        if old.get(key) == new.get(key):
            continue
        kind, why = setting_meaning(key, after.representative_trial, before.representative_trial)
        was, now = (setting_text(side[key]) if key in side else "not reported" for side in (old, new))
        # a setting that only one version of distbench reports does not make the work different
        in_both = key in old and key in new
        (work if kind == "work" and in_both else notes).append(f"{key} = {now}, was {was}: {why}")
    return (f"different work: {work[0]}" if work else ""), tuple(notes)


def with_changes(pairs: list[CasePair], run_variances: RunVariances) -> list[CasePair]:
    """Add the changes to *pairs*; the noise of a number is that of all its trials in one run, and of runs."""
    fit = [
        (pair, pair.before, pair.after)
        for pair in pairs
        if pair.before and pair.after and not pair.incomparable
    ]
    changes: dict[str, list[MetricChange]] = {after.case.id: [] for _, _, after in fit}
    for column in (name for name in COMPARED_COLUMNS if name != EFFICIENCY):
        both = [
            (pair, old, new)
            for pair, old, new in fit
            if old.positive_trials(column) and new.positive_trials(column)
            if not (pair.disturbed and column in SPEED_COLUMNS)
        ]
        befores, afters = (
            intervals([row.positive_trials(column) for row in side], is_exact=column not in SPEED_COLUMNS)
            for side in ([before for _, before, _ in both], [after for _, _, after in both])
        )
        for (_, _, row), before, after in zip(both, befores, afters, strict=True):
            known = run_variances.by_case_and_column.get((row.case.id, column))
            changes[row.case.id].append(
                _change(column, row.columns[column], before, after, known, of=len(both))
            )
    for _, first, second in fit:
        changes[second.case.id] = _step_time_as_throughput(changes[second.case.id], first, second)
    made = [replace(pair, changes=tuple(changes.get(pair.id, ()))) for pair in pairs]
    scaled = _efficiencies(made, run_variances)
    return [replace(pair, changes=(*pair.changes, *scaled.get(pair.id, ()))) for pair in made]


def _step_time_as_throughput(
    changes: list[MetricChange], before: CaseSummary, after: CaseSummary
) -> list[MetricChange]:
    """Replace the step time's change by the throughput's: they are reciprocal and must agree.

    The means over trials agree, but the variance between runs is known for medians. The median of an even
    number of times is not the time at the median rate, so the two changes of the same trials could
    disagree. A tool that measured them separately keeps both.
    """
    pace = next((change for change in changes if change.column == THROUGHPUT), None)
    if pace is None or not (_step_time_mirrors_throughput(before) and _step_time_mirrors_throughput(after)):
        return changes
    ratio = replace(pace.ratio, value=1 / pace.ratio.value)
    return [
        replace(change, ratio=ratio, word=pace.word, run_degrees_of_freedom=pace.run_degrees_of_freedom)
        if change.column == STEP
        else change
        for change in changes
    ]


def _step_time_mirrors_throughput(row: CaseSummary) -> bool:
    """True if step time times throughput is the same number of tokens in all trials."""
    steps, paces = row.positive_trials(STEP), row.positive_trials(THROUGHPUT)
    if not steps or len(steps) != len(paces):
        return False
    tokens = [step * pace for step, pace in zip(steps, paces, strict=True)]
    return max(tokens) < min(tokens) * _TOKEN_TOLERANCE


def _efficiencies(pairs: list[CasePair], run_variances: RunVariances) -> dict[str, tuple[MetricChange]]:
    """Changes of scaling efficiency (``scaling.SCALING_DEFINITIONS``) of the cases that have one."""
    paces = {pair.id: pace for pair in pairs if (pace := pair.change(THROUGHPUT))}
    changes = {}
    paced = [pair.after.case for pair in pairs if pair.after and pair.id in paces]
    every = case_series(paced)
    count = sum(len(others) for _, (_, *others) in every)
    for _, (first, *others) in every:
        base = paces[first.id]
        for case in others:
            pace = paces[case.id]
            before, after = (
                replace(here.ratio(alone), value=here.value / (case.world_size * alone.value))
                for here, alone in ((pace.before, base.before), (pace.after, base.after))
            )
            described, known = (
                {"unit": "", "better": "higher"},
                run_variances.by_case_and_column.get((case.id, EFFICIENCY)),
            )
            changes[case.id] = (_change(EFFICIENCY, described, before, after, known, of=count),)
    return changes


def _change(
    column: str,
    described: dict[str, Any],
    before: ConfidenceInterval,
    after: ConfidenceInterval,
    known: RunVariance | None,
    of: int,
) -> MetricChange:
    """Change of one of *of* cases; the word holds for all of them simultaneously."""
    ratio = after.ratio(before)
    if known and ratio.half_log_width is not None and known.half_log_width(CONFIDENCE) > ratio.half_log_width:
        # the difference between runs includes the noise of their trials
        ratio = replace(
            ratio,
            half_log_width=known.half_log_width(CONFIDENCE),
            degrees_of_freedom=known.degrees_of_freedom,
        )
    word: ChangeWord = change_direction(before.value, after.value, described["better"])
    is_apart = abs(math.log(ratio.value)) > (ratio.simultaneous_half_log_width_of(of) or 0.0)
    if not is_apart or abs(after.value / before.value - 1) < _MIN_CHANGE:
        word = "same"
    elif ratio.half_log_width is None:
        word = "unknown"
    return MetricChange(
        column, described["unit"], before, after, ratio, word, known.degrees_of_freedom if known else 0
    )


def change_direction(before: float, after: float, better: str | None) -> ChangeDirection:
    """Direction of the change of a number, given its *better* direction."""
    if better not in ("higher", "lower"):
        return "other"
    return "better" if (after > before) == (better == "higher") else "worse"
