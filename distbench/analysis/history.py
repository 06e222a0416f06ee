"""Follow one metric of each case over runs and find level shifts.

The run is the unit, as the trial is within a run: the trials of a run share its day, so they make one
point, their median. Two runs have the same case if its id is the same. Shifts are searched only between
changes of the environment: a shift that came with a new driver is not due to the code. This is a monitor;
a gate needs baseline and candidate side by side.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from distbench.analysis.case_summary import EXACT_COLUMNS, CaseSummary
from distbench.analysis.comparison import (
    COMPARED_COLUMNS,
    EFFICIENCY,
    ChangeDirection,
    change_direction,
    setting_differences,
)
from distbench.analysis.estimate import Estimate
from distbench.analysis.run import RunAnalysis
from distbench.analysis.scaling import ScalingPoint, ScalingSeries
from distbench.analysis.settings import fact_differences, merge_environments
from distbench.analysis.statistics import change_points
from distbench.analysis.statistics.change_points import LevelShift
from distbench.analysis.statistics.intervals import RunVariance, RunVariances, run_variance
from distbench.core.case import Case
from distbench.core.grouping import group_pairs
from distbench.core.text import one_line
from distbench.prediction.probed_rates import PROBE
from distbench.record import Record, records_of_kind
from distbench.record.record_reader import DamagedTrial
from distbench.record.run_folder import RunInfo

MIN_SHIFT = 0.03
"""Default of the smallest shift that is reported, as a fraction."""

# facts of a machine and its software; not those that differ between processes, such as their threads,
# or between boots, such as the bytes of memory that the kernel leaves
_ENVIRONMENT_FACTS = {
    "backend",
    "cpu",
    "cpu_cores",
    "cuda",
    "distbench",
    "gpu",
    "gpu_driver",
    "gpus",
    "nccl",
    "packages",
    "python",
    "system",
    "threads",
    "torch",
    "variables",
}


@dataclass(frozen=True)
class MeasuredEnvironment:
    """Environment in which a case of one run was measured."""

    facts: dict[str, tuple[str, ...]]
    from_rank: bool
    """True if a rank reported it; otherwise the launching machine did, which knows less."""

    def differences_from(self, after: MeasuredEnvironment) -> dict[str, tuple[str, str]]:
        """Facts that differ from *after*; only facts that both know if just one comes from a rank."""
        sides = [self.facts, after.facts]
        if self.from_rank != after.from_rank:
            shared = self.facts.keys() & after.facts.keys()
            sides = [{key: value for key, value in side.items() if key in shared} for side in sides]
        different = fact_differences(*sides)
        if "packages.torch" in different:
            different.pop("torch", None)
        return different


@dataclass(frozen=True)
class HistoryRun:
    """One run, as one point of each of its cases."""

    run_id: str
    created: datetime
    cases: tuple[CaseSummary, ...]
    environments: dict[str, MeasuredEnvironment]
    """Environment of each case id."""
    machine: Mapping[str, Any]
    """Description of the machine in the run."""
    efficiency: dict[str, Estimate]
    """Case id -> scaling efficiency, for cases also measured on one device."""
    damaged: tuple[DamagedTrial, ...] = ()
    """Trials that can't be read; no number includes them."""
    probes: tuple[Record, ...] = ()
    """Probes of its machine."""

    def restricted_to(self, ids: Collection[str]) -> HistoryRun:
        """The run with only the cases in *ids*."""
        return replace(self, cases=tuple(row for row in self.cases if row.case.id in ids))

    @classmethod
    def of(cls, run: RunAnalysis) -> HistoryRun:
        """Reduce *run* to one point for each of its cases.

        Raises:
            ValueError: the run does not say when it was made.
        """
        created = datetime.fromisoformat(run.info.created)
        return cls(
            run.info.run_id,
            created if created.tzinfo else created.replace(tzinfo=UTC),
            run.cases,
            {row.case.id: _measured_environment(row, run.info) for row in run.cases},
            run.info.machine,
            _efficiencies(run.scaling),
            tuple(run.damaged),
            tuple(records_of_kind(run.records, PROBE)),
        )


@dataclass(frozen=True)
class HistoryPoint:
    """Value of a case in one run."""

    run_id: str
    created: datetime
    value: Estimate


@dataclass(frozen=True)
class EnvironmentChange:
    """Change of the environment between two points."""

    place: int
    """Index of the first point after it."""
    facts: tuple[str, ...]
    """Changed facts, each as a clause: ``packages.torch = 2.13.0, was 2.12.1``."""
    shift: LevelShift | None
    """Shift that came with it; None if within the noise."""
    is_testable: bool
    """True if there are enough points on both sides to detect a shift."""


@dataclass(frozen=True)
class LevelSegment:
    """Points between which nothing changed."""

    start: int
    end: int
    """Index after the last point."""
    value: float


@dataclass(frozen=True)
class CaseHistory:
    """One metric of one case over runs."""

    case: Case
    """Named as in the last run."""
    metric: str
    unit: str
    better: str | None
    points: tuple[HistoryPoint, ...]
    environment_changes: tuple[EnvironmentChange, ...]
    shifts: tuple[LevelShift, ...]
    """Level shifts within one environment."""
    segments: tuple[LevelSegment, ...]
    skipped_runs: tuple[tuple[str, str], ...]
    """Run that has the case but no usable number -> reason."""

    @property
    def values(self) -> list[float]:
        """Value of each point."""
        return [point.value.value for point in self.points]

    def direction(self, shift: LevelShift) -> ChangeDirection:
        """Direction of *shift*: better, worse, or other if the metric has no better direction."""
        return change_direction(shift.before, shift.after, self.better)

    @property
    def run_variance(self) -> RunVariance | None:
        """Variance of its runs between changes; None if there are too few runs."""
        return run_variance([self.values[level.start : level.end] for level in self.segments])


def available_metrics(runs: Iterable[HistoryRun]) -> list[str]:
    """All metrics of which a run has a number."""
    names: set[str] = set()
    for occasion in runs:
        names.update(*(row.values for row in occasion.cases), [EFFICIENCY] if occasion.efficiency else [])
    return sorted(names)


Known = dict[tuple[int, int], tuple[str, ...]]
"""Changes between two appearances of a case, by their identities; the same for every column."""


def case_histories(
    runs: Iterable[HistoryRun], metric: str, min_shift: float = MIN_SHIFT, known: Known | None = None
) -> list[CaseHistory]:
    """Histories of *metric* for each case that has a number, in order of appearance.

    *min_shift* is the smallest shift that is reported, as a fraction; *known* is extended, and may be that of
    another column of the same runs.
    """
    known = {} if known is None else known
    by_case = group_pairs(
        (row.case.id, (occasion, row))
        for occasion in sorted(runs, key=lambda occasion: occasion.created)
        for row in occasion.cases
    )
    every = (_case_history(appearances, metric, min_shift, known) for appearances in by_case.values())
    return [series for series in every if series]


def run_variances(runs: Iterable[HistoryRun], ids: Collection[str]) -> RunVariances:
    """Variance of the cases in *ids* over *runs*, in the columns that ``compare`` compares."""
    if missing := change_points.missing_dependency():
        return RunVariances(absent=f"detecting changes between runs needs {missing}")
    of_cases, known = [occasion.restricted_to(ids) for occasion in runs], Known()
    series = (
        (name, each) for name in COMPARED_COLUMNS for each in case_histories(of_cases, name, known=known)
    )
    return RunVariances(
        {(each.case.id, name): found for name, each in series if (found := each.run_variance)}
    )


def _is_usable(row: CaseSummary, metric: str) -> bool:
    """True if *metric* of a case may be compared; noise voids its times and leaves its exact numbers."""
    return row.comparable or (metric in EXACT_COLUMNS and row.measured and not row.differs)


def _skip_reason(row: CaseSummary, metric: str) -> str:
    if row.degraded and metric not in EXACT_COLUMNS:
        return f"noisy machine: {one_line(row.degraded)}"
    if row.differs:
        return "not equivalent to its reference"
    if row.measured:
        return one_line(row.absence_reasons.get(metric, f"has no {metric}"))
    return f"{row.status}: {one_line(row.reason)}"


def _case_history(
    appearances: Sequence[tuple[HistoryRun, CaseSummary]], metric: str, min_shift: float, known: Known
) -> CaseHistory | None:
    usable: list[tuple[HistoryRun, CaseSummary]] = []
    points, left_out = [], []
    for occasion, row in appearances:
        # a run is one point from its own trials alone: the other cases of a suite change over the years
        estimate = occasion.efficiency.get(row.case.id) if metric == EFFICIENCY else row.values.get(metric)
        value = estimate.as_median if estimate else None
        if _is_usable(row, metric) and value is not None:
            usable.append((occasion, row))
            points.append(HistoryPoint(occasion.run_id, occasion.created, value))
        elif why := _skip_reason(row, metric):
            left_out.append((occasion.run_id, why))
    if not usable:
        return None
    row = usable[-1][1]
    column = row.columns.get(metric, {"unit": "", "better": "higher" if metric == EFFICIENCY else None})
    values = [point.value.value for point in points]
    changes = _environment_changes(usable, known)
    steps = [
        replace(step, place=start + step.place)
        for start, end in pairwise([0, *changes, len(points)])
        for step in change_points.find_shifts(values[start:end], min_shift)
    ]
    ends = sorted([0, *changes, *(step.place for step in steps), len(points)])
    breaks = []
    for place, facts in changes.items():
        left, right = max(end for end in ends if end < place), min(end for end in ends if end > place)
        step = change_points.shift_at(values[left:right], place - left)
        is_clear = step and step.chance <= change_points.FALSE_ALARM_RATE and abs(step.effect) >= min_shift
        breaks.append(
            EnvironmentChange(place, facts, step if is_clear else None, is_testable=step is not None)
        )
    return CaseHistory(
        case=row.case,
        metric=metric,
        unit=column["unit"],
        better=column["better"],
        points=tuple(points),
        environment_changes=tuple(breaks),
        shifts=tuple(steps),
        segments=tuple(
            LevelSegment(a, b, change_points.segment_level(values[a:b])) for a, b in pairwise(ends)
        ),
        skipped_runs=tuple(left_out),
    )


def _environment_changes(
    usable: Sequence[tuple[HistoryRun, CaseSummary]], known: Known
) -> dict[int, tuple[str, ...]]:
    """Points before which the environment changed, with the changed facts."""
    breaks = {}
    for place, (before, after) in enumerate(pairwise(usable), 1):
        pair = id(before[1]), id(after[1])
        if pair not in known:
            known[pair] = tuple(_environment_differences(before, after))
        if known[pair]:
            breaks[place] = known[pair]
    return breaks


def _environment_differences(
    before: tuple[HistoryRun, CaseSummary], after: tuple[HistoryRun, CaseSummary]
) -> Iterator[str]:
    """Differences in the environment and the settings of a case."""
    surroundings = [occasion.environments[row.case.id] for occasion, row in (before, after)]
    for key, (was, now) in surroundings[0].differences_from(surroundings[1]).items():
        yield f"{one_line(key)} = {one_line(now)}, was {one_line(was)}"
    work, _ = setting_differences(before[1], after[1])
    if work:
        yield work


def _measured_environment(row: CaseSummary, info: RunInfo) -> MeasuredEnvironment:
    records = [row.representative_trial] if row.representative_trial else []
    facts = merge_environments(records, info.machine) | {"distbench": (one_line(str(info.version)),)}
    kept = {key: value for key, value in facts.items() if key.partition(".")[0] in _ENVIRONMENT_FACTS}
    return MeasuredEnvironment(kept, any(record.environment for record in records))


def _efficiencies(scaling: Sequence[ScalingSeries]) -> dict[str, Estimate]:
    return {
        point.row.case.id: _efficiency(point, series.points[0])
        # if a case belongs to two series, the first (strong scaling) counts in all runs
        for series in reversed(scaling)
        for point in series.points
        if point.world_size > 1
    }


def _efficiency(point: ScalingPoint, alone: ScalingPoint) -> Estimate:
    """Efficiency of *point* over its trials and those on one device, like all points of a history."""
    here, one, size = point.throughput.as_median, alone.throughput.as_median, point.world_size
    return Estimate(
        here.value / (size * one.value),
        here.low / (size * one.high),
        here.high / (size * one.low),
        here.trial_count,
    )
