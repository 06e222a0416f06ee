"""One number of one case over runs: a point a run, breaks where the environment changed, steps between.

The run is the unit, as the trial is in one run: the trials of a run share its day, so they make one point,
their median. What was asked of a case decides whether two runs have the same one (its id). Steps are
looked for between breaks only: what came with another driver is no change of the code. This is a monitor;
it takes arms that are run side by side to gate.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from typing import Literal

from distbench.analysis import change_points
from distbench.analysis.change_points import Step
from distbench.analysis.comparison import settings_apart
from distbench.analysis.environment import differences, environment
from distbench.analysis.scaling import scaling
from distbench.analysis.summary import CaseSummary, Estimate
from distbench.analysis.text import one_line
from distbench.case import Case
from distbench.store import RunInfo

EFFICIENCY = "efficiency"
"""The metric that is no column of a record: see ``scaling.DEFINITIONS``."""
LEAST = 0.03
"""The smallest step that is told unless another is asked for, as a fraction."""
Word = Literal["better", "worse", "other"]

# what a machine and its software are; not what is another in each process, such as its own threads, or
# in each boot, such as the bytes of memory that the kernel leaves
_SURROUNDINGS = {
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
class Surroundings:
    """What a case of one run was measured on."""

    facts: dict[str, tuple[str, ...]]
    told_by_rank: bool
    """Whether a rank told; else the machine that started them, which knows less."""

    def apart(self, after: Surroundings) -> dict[str, tuple[str, str]]:
        """Return the facts that differ from those *after*; where another party told, of what both tell."""
        sides = [self.facts, after.facts]
        if self.told_by_rank != after.told_by_rank:
            sides = [
                {k: told for k, told in side.items() if all(k in each for each in sides)} for side in sides
            ]
        found = differences(*sides)
        if "packages.torch" in found:
            found.pop("torch", None)
        return found


@dataclass(frozen=True)
class Occasion:
    """One run, as one point of each of its cases."""

    run_id: str
    created: datetime
    cases: tuple[CaseSummary, ...]
    surroundings: dict[str, Surroundings]
    """Of each case id."""
    efficiency: dict[str, Estimate]
    """Case id -> efficiency of scaling, of those that were measured on one device too."""

    @classmethod
    def of(cls, info: RunInfo, cases: Sequence[CaseSummary]) -> Occasion:
        """Return what *cases*, the summaries of a run, say.

        Raises:
            ValueError: the run does not tell when it was made.
        """
        return cls(
            info.run_id,
            _time(info.created),
            tuple(cases),
            {row.case.id: _surroundings(row, info) for row in cases},
            _efficiencies(cases),
        )

    def value(self, row: CaseSummary, metric: str) -> Estimate | None:
        """Return the number of a case, None if it has none."""
        return self.efficiency.get(row.case.id) if metric == EFFICIENCY else row.values.get(metric)


@dataclass(frozen=True)
class Point:
    """What one run says of a case."""

    run_id: str
    created: datetime
    value: Estimate


@dataclass(frozen=True)
class Change:
    """A step, and whether it is a good one."""

    step: Step
    word: Word


@dataclass(frozen=True)
class Break:
    """Where the environment changed, between two points."""

    place: int
    """Index of the first point after it."""
    facts: tuple[str, ...]
    """What changed, each as a clause: ``packages.torch = 2.13.0, was 2.12.1``."""
    change: Change | None
    """What came with it; None if it can't be told from noise."""
    is_known: bool
    """Whether there are points enough on both sides to tell."""


@dataclass(frozen=True)
class Level:
    """Points between which nothing changed."""

    start: int
    end: int
    """Index behind the last."""
    value: float


@dataclass(frozen=True)
class Series:
    """One metric of one case over runs."""

    case: Case
    """As the last run names it."""
    metric: str
    unit: str
    better: str | None
    points: tuple[Point, ...]
    breaks: tuple[Break, ...]
    changes: tuple[Change, ...]
    """Steps within one environment."""
    levels: tuple[Level, ...]
    left_out: tuple[tuple[str, str], ...]
    """Run that has the case and no number that counts -> why."""

    @property
    def values(self) -> list[float]:
        """Return the number of each point."""
        return [point.value.value for point in self.points]


@dataclass
class _Gathered:
    rows: list[CaseSummary] = field(default_factory=list)
    surroundings: list[Surroundings] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)
    left_out: list[tuple[str, str]] = field(default_factory=list)


def metrics(occasions: Iterable[Occasion]) -> list[str]:
    """Return every metric that some run has a number of."""
    found: dict[str, None] = {}
    for occasion in occasions:
        found |= dict.fromkeys(name for row in occasion.cases for name in row.values)
        found |= {EFFICIENCY: None} if occasion.efficiency else {}
    return sorted(found)


def history(occasions: Iterable[Occasion], metric: str, least: float = LEAST) -> list[Series]:
    """Return the series of *metric* of each case that has a number, in the order in which they appeared.

    *least* is the smallest step that is told, as a fraction.
    """
    found: dict[str, _Gathered] = {}
    for occasion in sorted(occasions, key=lambda each: each.created):
        for row in occasion.cases:
            _gather(found.setdefault(row.case.id, _Gathered()), occasion, row, metric)
    return [_series(each, metric, least) for each in found.values() if each.points]


def _gather(into: _Gathered, occasion: Occasion, row: CaseSummary, metric: str) -> None:
    value = occasion.value(row, metric)
    if row.comparable and value is not None:
        into.rows.append(row)
        into.surroundings.append(occasion.surroundings[row.case.id])
        into.points.append(Point(occasion.run_id, occasion.created, value))
    elif why := _why_not(row, metric):
        into.left_out.append((occasion.run_id, why))


def _why_not(row: CaseSummary, metric: str) -> str:
    if row.degraded:
        return f"disturbed: {one_line(row.degraded)}"
    if row.differs:
        return "another training than its reference"
    if row.measured:
        return one_line(row.absent.get(metric, f"has no {metric}"))
    return f"{row.status}: {one_line(row.reason)}"


def _series(gathered: _Gathered, metric: str, least: float) -> Series:
    row, points = gathered.rows[-1], gathered.points
    column = row.columns.get(metric, {"unit": "", "better": "higher" if metric == EFFICIENCY else None})
    values = [point.value.value for point in points]
    apart = _breaks(gathered)
    steps = [
        Step(start + step.place, step.before, step.after, step.chance)
        for start, end in pairwise([0, *apart, len(points)])
        for step in change_points.steps(values[start:end], least)
    ]
    ends = sorted([0, *apart, *(step.place for step in steps), len(points)])
    breaks = []
    for place, facts in apart.items():
        left, right = max(e for e in ends if e < place), min(e for e in ends if e > place)
        step = change_points.step_at(values[left:right], place - left)
        breaks.append(_break(place, facts, step, column["better"], least))
    return Series(
        case=row.case,
        metric=metric,
        unit=column["unit"],
        better=column["better"],
        points=tuple(points),
        breaks=tuple(breaks),
        changes=tuple(Change(step, _word(step, column["better"])) for step in steps),
        levels=tuple(Level(a, b, change_points.level(values[a:b])) for a, b in pairwise(ends)),
        left_out=tuple(gathered.left_out),
    )


def _break(place: int, facts: tuple[str, ...], step: Step | None, better: str | None, least: float) -> Break:
    told = step is not None and step.chance <= change_points.CHANCE and abs(step.effect) >= least
    change = Change(step, _word(step, better)) if step and told else None
    return Break(place, facts, change, is_known=step is not None)


def _word(step: Step, better: str | None) -> Word:
    if better not in ("higher", "lower"):
        return "other"
    return "better" if (step.after > step.before) == (better == "higher") else "worse"


def _breaks(gathered: _Gathered) -> dict[int, tuple[str, ...]]:
    """Return the points before which the environment changed, with what did."""
    found = {}
    for place in range(1, len(gathered.points)):
        facts = gathered.surroundings[place - 1].apart(gathered.surroundings[place])
        work, _ = settings_apart(*gathered.rows[place - 1 : place + 1])
        told = [
            f"{one_line(key)} = {one_line(now)}, was {one_line(was)}" for key, (was, now) in facts.items()
        ]
        if told or work:
            found[place] = (*told, *([work] if work else []))
    return found


def _surroundings(row: CaseSummary, info: RunInfo) -> Surroundings:
    records = [row.detail] if row.detail else []
    told = environment(records, info.machine) | {"distbench": (one_line(str(info.version)),)}
    kept = {key: value for key, value in told.items() if key.partition(".")[0] in _SURROUNDINGS}
    return Surroundings(kept, any(record.environment for record in records))


def _efficiencies(cases: Sequence[CaseSummary]) -> dict[str, Estimate]:
    return {
        point.row.case.id: Estimate(point.efficiency, point.low, point.high, point.throughput.n)
        # where a case is of two series, the first (strong scaling) counts in all runs
        for series in reversed(scaling(cases))
        for point in series.points
        if point.world_size > 1
    }


def _time(created: object) -> datetime:
    if not isinstance(created, str):
        raise ValueError(f"created = {created!r}: not a time")
    found = datetime.fromisoformat(created)
    return found if found.tzinfo else found.replace(tzinfo=UTC)
