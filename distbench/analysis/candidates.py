"""Turn the cases of a run into candidates for a recommendation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from distbench.analysis.case_names import precision_name, short_names, work_names
from distbench.analysis.case_summary import (
    MEMORY,
    PENDING,
    THROUGHPUT,
    UNMEASURED,
    CaseSummary,
    comparable_groups,
)
from distbench.analysis.choice import Candidate
from distbench.analysis.losses.case_losses import DIFFERENT_BY_DESIGN
from distbench.analysis.parity import SettingDifference
from distbench.analysis.predicted_candidates import with_predictions
from distbench.analysis.settings import strategy_description
from distbench.analysis.statistics.intervals import ConfidenceInterval, Noise, noise_of
from distbench.core.case import CURRENT_ENVIRONMENT, NATIVE_ENGINE
from distbench.core.grouping import group_by
from distbench.core.text import one_line
from distbench.prediction.cases import CasePrediction

T = TypeVar("T")

RESERVED_MEMORY, ENERGY_PER_TOKEN = "memory_reserved_peak", "energy_per_token"
DEVICE_MEMORY_COLUMNS = ("gpu_memory_own", "memory_device_peak")
"""Columns of a GPU's memory in use: by the ranks, from NVML; else by all processes, from CUDA."""
ASSUMED_CONTEXT_BYTES = 2.0**30
"""Bytes of a GPU that a process is assumed to use outside torch's allocator if neither NVML nor CUDA reported
it (CUDA's context, kernels, the buffers of NCCL and cuBLAS): the middle of the common half to two GiB."""


def make_candidates(
    cases: Sequence[CaseSummary],
    parity_findings: Mapping[str, Sequence[SettingDifference]],
    predictions: Mapping[str, CasePrediction],
) -> list[Candidate]:
    """Convert the cases of a run to candidates; *parity_findings* and *predictions* are by case id."""
    rank = {row.case.id: place for place, row in enumerate(sorted(cases, key=_complexity))}
    names, works = _short_names(cases), work_names([row.case for row in cases])
    made = [
        Candidate(
            id=row.case.id,
            name=names[row.case.id],
            label=one_line(row.case.label),
            devices=row.case.world_size,
            precision=precision_name(row.case.precision),
            work=works[row.case.id],
            simplicity=rank[row.case.id],
            speed=_interval_of(row, THROUGHPUT),
            memory=memory,
            memory_assumed=assumed,
            joules=_interval_of(row, ENERGY_PER_TOKEN),
            exclusion_reason=exclusion_reason,
            is_noisy=bool(row.degraded) and exclusion_reason == _noise_reason(row),
            unknown=row.absence_reasons.get(THROUGHPUT, "not measured"),
            memory_unknown=row.absence_reasons.get(MEMORY, "not measured"),
            joules_unknown=row.absence_reasons.get(ENERGY_PER_TOKEN, "not measured"),
        )
        for row in cases
        for memory, assumed in [_required_memory(row)]
        for exclusion_reason in [
            _prediction_reason(row, predictions.get(row.case.id))
            or _exclusion_reason(row, parity_findings.get(row.case.id, []))
        ]
    ]
    places = group_by(made, lambda one: (one.devices, one.work, one.precision)).values()
    together = {one.id: sum(other.speed is not None for other in place) for place in places for one in place}
    found = [_with_simultaneous_intervals(one, together[one.id]) for one in made]
    return with_predictions(found, {row.case.id: row for row in cases}, predictions)


def _with_simultaneous_intervals(one: Candidate, count: int) -> Candidate:
    """Widen the intervals of *one* for comparisons among *count* candidates."""
    speed, joules = (number and number.for_comparisons_of(count) for number in (one.speed, one.joules))
    return replace(one, speed=speed, joules=joules)


def _interval_of(row: CaseSummary, column: str) -> ConfidenceInterval | None:
    estimate = row.values.get(column)
    return estimate.interval if estimate else None


def _short_names(cases: Sequence[CaseSummary]) -> dict[str, str]:
    """Short case names, unique among the cases on the same number of devices: only those are compared."""
    by_size = group_by((row.case for row in cases), lambda case: case.world_size)
    return {key: name for mine in by_size.values() for key, name in short_names(mine).items()}


def noise_by_device_count(cases: Sequence[CaseSummary]) -> dict[int, Noise]:
    """Noise of throughput for each number of devices on which a case was measured twice."""
    by_size = sorted(_by_size(cases, THROUGHPUT).items())
    noises = ((size, noise_of([row.positive_trials(THROUGHPUT) for row in rows])) for size, rows in by_size)
    return {size: noise for size, noise in noises if noise}


def _prediction_reason(row: CaseSummary, found: CasePrediction | None) -> str:
    """Reason against a case that was only predicted; empty: it was tried, or nothing was predicted of it."""
    if row.status not in (PENDING, UNMEASURED) or found is None or isinstance(found.step, str):
        return ""
    return "predicted (--view predictions), not measured"


def _exclusion_reason(row: CaseSummary, differences: Sequence[SettingDifference]) -> str:
    """Reason why a case is never recommended; empty if it may be."""
    if not row.measured:
        return f"{row.status}: {one_line(row.reason)}" if row.reason else row.status
    if voided := [verdict for verdict in row.verdicts.values() if verdict.invalidates]:
        # the verdicts of that kind show the whole sentence
        return f"{voided[0].kind}: {one_line(voided[0].sentence.partition('; ')[0])}"
    # a setting that can't be compared is a caveat of the recommendation, not a failure
    if unfair := [each for each in differences if each.kind == "work" and each.is_known]:
        return f"not the same work: {one_line(str(unfair[0]))}"
    return _unproven_reason(row) or (_noise_reason(row) if row.degraded else "")


def _unproven_reason(row: CaseSummary) -> str:
    """Reason why a case that differs by design may train worse; empty if it doesn't differ or was cleared."""
    design = row.unproven_design
    if design is None:
        return ""
    judged = row.verdicts.get("convergence")
    shown = (
        one_line(judged.sentence)
        if judged
        else "its convergence was not tested; add a section converge to the suite"
    )
    return f"{DIFFERENT_BY_DESIGN}: {one_line(design.why)}; {shown}"


def _noise_reason(row: CaseSummary) -> str:
    return f"measured on a noisy machine: {one_line(row.degraded)}"


def _required_memory(row: CaseSummary) -> tuple[float | None, float]:
    """Memory that a device must have, and the assumed (unmeasured) part of it.

    On a GPU: all memory in use (``DEVICE_MEMORY_COLUMNS``), but at least the allocator's segments, which may
    grow beyond need on a large device. On a CPU: the tensors.
    """
    peak = row.values.get(RESERVED_MEMORY) or row.values.get(MEMORY)
    if peak is None or row.case.device == "cpu":
        return peak.value if peak else None, 0.0
    whole = next((row.values[name] for name in DEVICE_MEMORY_COLUMNS if name in row.values), None)
    return (
        (max(peak.value, whole.value), 0.0)
        if whole
        else (peak.value + ASSUMED_CONTEXT_BYTES, ASSUMED_CONTEXT_BYTES)
    )


def _by_size(cases: Sequence[CaseSummary], column: str) -> dict[int, list[CaseSummary]]:
    """Cases whose trials of *column* can all form a ratio, by number of devices."""
    return group_by((row for row in cases if row.positive_trials(column)), lambda row: row.case.world_size)


def _complexity(row: CaseSummary) -> tuple[bool, int, int, bool, bool, int]:
    """Complexity of a case: Python, offloads, the strategy's own order, recomputation, engine, variables."""
    strategy, case = strategy_description(row.case, row.representative_trial), row.case
    recomputes = case.activation_checkpointing != "none"
    other = case.environment != CURRENT_ENVIRONMENT
    framework = case.engine != NATIVE_ENGINE
    return other, len(strategy.offloads), strategy.simplicity, recomputes, framework, len(case.env)


def pareto_fronts(cases: Sequence[CaseSummary]) -> list[list[CaseSummary]]:
    """Pareto front of each number of devices and each work in one precision, lowest memory first.

    A case is left out if another one has at least its throughput with no more memory, and is better in one
    of the two. If several cases are equal in both, the first in the suite represents them. The fronts use
    point estimates: neighbours may be statistically tied. Cases that may train worse
    (``CaseSummary.unproven_design``) are on no front and dominate no other case.
    """
    known = [row for row in cases if {THROUGHPUT, MEMORY} <= row.values.keys() and not row.unproven_design]
    return [
        pareto_front(rows, lambda row: row.values[MEMORY].value, lambda row: row.values[THROUGHPUT].value)
        for rows in comparable_groups(known)
    ]


def pareto_front(items: Sequence[T], cost: Callable[[T], float], gain: Callable[[T], float]) -> list[T]:
    """Those of *items* of which none has at least the *gain* at no more *cost*, lowest cost first."""
    front: list[T] = []
    for item in sorted(items, key=lambda item: (cost(item), -gain(item))):
        if not front or gain(item) > gain(front[-1]):
            front.append(item)
    return front
