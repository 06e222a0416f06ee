"""Throughput and efficiency over the number of devices."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from distbench.analysis.case_names import short_names
from distbench.analysis.case_summary import THROUGHPUT, CaseSummary
from distbench.analysis.estimate import Estimate
from distbench.analysis.losses.case_losses import finite_values
from distbench.analysis.ranks import mean_by_rank
from distbench.core.case import TUNABLE_FIELDS, Case
from distbench.core.grouping import group_by
from distbench.core.text import one_line

ScalingKind = Literal["strong", "weak"]

SCALING_DEFINITIONS: dict[ScalingKind, str] = {
    "strong": "Strong scaling (the global batch is fixed): Eₙ = Xₙ / (n X₁), X being tokens/s. It is the "
    "parallel efficiency of the ScaLAPACK Users' Guide (T₁ / (n Tₙ), T the time of a step), with the "
    "same strategy on one device instead of the best sequential program.",
    "weak": "Weak scaling (the batch per device is fixed): Eₙ = Xₙ / (n X₁), X being tokens/s: what each of "
    "n devices does, relative to what it does alone.",
}


@dataclass(frozen=True)
class ScalingPoint:
    """One strategy at one world size."""

    world_size: int
    throughput: Estimate
    """``X_n``, in tokens/s."""
    efficiency: float
    """``X_n / (n X_1)``; see ``SCALING_DEFINITIONS``."""
    low: float
    """Lower end of its 95% interval; the efficiency itself if the spread is unknown."""
    high: float
    row: CaseSummary
    """The case at this world size."""


@dataclass(frozen=True)
class ScalingSeries:
    """One strategy over world sizes, with otherwise the same work."""

    name: str
    """Label, with what distinguishes the series of one run."""
    kind: ScalingKind
    case: Case
    """The case at world size 1."""
    points: tuple[ScalingPoint, ...]


def scaling_series(cases: Sequence[CaseSummary]) -> list[ScalingSeries]:
    """Series for each strategy that was measured on one device and on more.

    Cases belong to one series if they differ only in the world size and its consequences: the batch per
    device if the global batch is fixed, or vice versa.
    """
    rows = {row.case.id: row for row in cases if row.comparable and row.positive_trials(THROUGHPUT)}
    found = case_series([row.case for row in rows.values()])
    names = short_names([series[0] for _, series in found])
    kinds = {kind for kind, _ in found}
    return [
        ScalingSeries(
            name=names[series[0].id] + (f" ({kind})" if len(kinds) > 1 else ""),
            kind=kind,
            case=series[0],
            points=tuple(_point(rows[case.id], rows[series[0].id].values[THROUGHPUT]) for case in series),
        )
        for kind, series in found
    ]


def fastest_series(cases: Sequence[CaseSummary]) -> list[ScalingSeries]:
    """Series of the fastest case on each number of devices, one device first, where strategies differ.

    ``T₁`` is then that of the best program on one device, as the ScaLAPACK Users' Guide defines efficiency.
    """
    rows = [row for row in cases if row.comparable and row.positive_trials(THROUGHPUT)]
    works = group_by(rows, lambda row: row.case.work_key((*TUNABLE_FIELDS, "world_size", "batch"))).values()
    return [each for kind in SCALING_DEFINITIONS for work in works for each in _fastest_of_work(kind, work)]


def _fastest_of_work(kind: ScalingKind, rows: Sequence[CaseSummary]) -> list[ScalingSeries]:
    found = []
    for same_batch in group_by(rows, lambda row: _fixed_batch(row.case, kind)).values():
        by_size = sorted(group_by(same_batch, lambda row: row.case.world_size).items())
        best = [max(same, key=lambda row: row.values[THROUGHPUT].value) for _, same in by_size]
        labels = list(dict.fromkeys(one_line(row.case.label) for row in best))
        if best[0].case.world_size > 1 or len(labels) < 2:
            continue
        points = tuple(_point(row, best[0].values[THROUGHPUT]) for row in best)
        found.append(ScalingSeries(f"fastest ({', '.join(labels)})", kind, best[0].case, points))
    return found


def case_series(cases: Sequence[Case]) -> list[tuple[ScalingKind, list[Case]]]:
    """Cases of each series by world size, one device first."""
    return [
        (kind, one)
        for group in case_families(cases)
        for kind in SCALING_DEFINITIONS
        for one in _series(group, kind)
    ]


def case_families(cases: Sequence[Case]) -> list[list[Case]]:
    """Groups of cases that differ only in world size and batch, in their order."""
    return list(group_by(cases, lambda case: case.work_key(("world_size", "batch"))).values())


def _series(group: Sequence[Case], kind: ScalingKind) -> list[list[Case]]:
    """Cases of each series of *kind* in *group* by world size, one device first."""
    found = []
    for same_size in group_by(group, lambda case: _fixed_batch(case, kind)).values():
        # if a world size splits its batch in several ways, the same micro-batch size or the same
        # number of them makes a series: whichever covers more of the cases
        by_micro = _complete_series(group_by(same_size, lambda case: case.batch.micro_batch_size).values())
        by_count = _complete_series(
            group_by(same_size, lambda case: case.batch.gradient_accumulation_steps).values()
        )
        either = [_complete_series([same_size]), by_micro, by_count]
        found += max(either, key=lambda all_series: sum(map(len, all_series)))
    return found


def _complete_series(groups: Iterable[list[Case]]) -> list[list[Case]]:
    """Groups with one case per world size that include one device and more."""
    ordered = [sorted(group, key=lambda case: case.world_size) for group in groups]
    return [group for group in ordered if _is_series([case.world_size for case in group])]


def _is_series(sizes: list[int]) -> bool:
    return sizes[0] == 1 and len(sizes) > 1 and len(set(sizes)) == len(sizes)


def _point(row: CaseSummary, base: Estimate) -> ScalingPoint:
    size, here = row.case.world_size, row.values[THROUGHPUT]
    # on one device the efficiency is 1 by definition, whatever the spread of the trials
    if size == 1:
        return ScalingPoint(size, here, 1.0, 1.0, 1.0, row)
    assert here.interval and base.interval, "a summary gives every pace above 0 an interval"
    ratio = here.interval.ratio(base.interval)
    return ScalingPoint(size, here, ratio.value / size, ratio.low / size, ratio.high / size, row)


def _fixed_batch(case: Case, kind: ScalingKind) -> int:
    """Samples per step that are the same at every world size of a series: in total, or per device."""
    whole = case.batch.global_batch_size
    return whole if kind == "strong" else whole // case.world_size


@dataclass(frozen=True)
class EfficiencyBreakdown:
    """Breakdown of the device time of a step; fractions of the step that add up to 1.

    With E the efficiency (``SCALING_DEFINITIONS``), the fraction E of each second of a device does the work
    of a single device. The rest, 1 - E, is split by the shares of the step under the profiler (means over
    ranks and profiled steps), assuming that they hold for the timed step too:

    - ``waiting``: for slower ranks, exposed. Mean of ``profile_step_s - work_s`` over the ranks, at most
      the exposed communication, over ``profile_step_s``. This is the price of imbalance.
    - ``transfer``: the rest of the exposed communication: ``profile_exposed_comm_s / profile_step_s``
      less ``waiting``.
    - ``work``: the remainder, ``1 - E - transfer - waiting``: computing, but for longer than the same work
      takes on a single device: work that every rank repeats, smaller matrices, memory and cores that
      ranks share, offload copies. Below 0 if n devices need less time (a larger cache, an optimizer whose
      states are sharded).
    """

    efficiency: float
    transfer: float
    waiting: float
    work: float


def efficiency_breakdown(point: ScalingPoint) -> EfficiencyBreakdown | str:
    """Break down the device time of a step at *point*, or return the reason why it is unknown."""
    row = point.row
    columns = ("profile_step_s", "profile_exposed_comm_s")
    step, exposed = map(row.values.get, columns)
    if step is None or exposed is None or step.value <= 0:
        return next(filter(None, map(row.absence_reasons.get, columns)), "no step was profiled")
    waited = waiting_share(row)
    if waited is None:
        return row.absence_reasons.get("work_s", "no rank reported its own work")
    lost = exposed.value / step.value
    waiting = min(waited, lost)
    return EfficiencyBreakdown(point.efficiency, lost - waiting, waiting, 1 - point.efficiency - lost)


def waiting_share(row: CaseSummary) -> float | None:
    """Share of a profiled step in which an average rank waits for others; None: unknown."""
    if row.representative_trial is None:
        return None
    own, steps = (
        mean_by_rank(row.representative_trial),
        mean_by_rank(row.representative_trial, "profile_step_s"),
    )
    if not own or own.keys() != steps.keys():
        return None
    whole = statistics.fmean(steps.values())
    return max(0.0, 1 - statistics.fmean(own.values()) / whole) if whole > 0 else None


def imbalance_share(row: CaseSummary) -> float | None:
    """Share of a profiled step that the other ranks lose to the slowest one; None: unknown, or one rank.

    ``(max - mean) / max * n / (n - 1)`` of the ranks' own work: the imbalance percentage of DeRose, Homer and
    Johnson (Euro-Par 2007). The shortest work of each rank over its steps counts, since other processes only
    lengthen it.
    """
    record = row.representative_trial
    known = [finite_values(steps) for steps in record.samples.get("work_s", [])] if record else []
    if len(known) < 2 or not all(known):
        return None
    work = [min(steps) for steps in known]
    return (1 - statistics.fmean(work) / max(work)) * len(work) / (len(work) - 1) if max(work) > 0 else None
