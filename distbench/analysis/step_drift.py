"""Detect memory growth and time drift during timed steps, and ranks that need far more memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from distbench.analysis.case_summary import CaseSummary
from distbench.core.grouping import group_by
from distbench.core.text import join_limited
from distbench.core.units import format_bytes
from distbench.metrics.steptime.drift import are_slowing, are_unsettled
from distbench.record import Record

_MIN_GROWTH = 0.05
"""Smallest growth that is reported, as a fraction of the peak of the counted step."""
_GROWTH_SLACK = 1.25
"""Maximum ratio of the growth expected from the counted step to the observed bytes: steps may leave less."""
_OUTLIER_RATIO = 2.0
"""A rank is an outlier if its peak is this many times the highest of all others."""


@dataclass(frozen=True)
class MemoryGrowth:
    """Growth of memory by tensors that every step leaves allocated."""

    per_step: float
    """Bytes per step."""
    total: float
    """Bytes that the steps before the counted one left."""
    steps: int
    """Number of those steps."""


def _memory_growth(record: Record | None) -> MemoryGrowth | None:
    """Growth per step of *record*, on the rank with the largest total; None if small or none.

    The counted step leaves bytes allocated, and it started with about as many unexplained ones for each step
    before it. A buffer that is allocated once is not left by that step; one that it replaces exists once.
    """
    rows = record.tables.get("memory", []) if record else []
    if record is None or not (steps := _steps_before(record)):
        return None
    found = []
    for counted in group_by((row for row in rows if "rank" in row), lambda row: int(row["rank"])).values():
        ends = [row for row in counted if row.get("phase") == "step"]
        left = float(ends[-1].get("activations") or 0) if ends else 0.0
        before = max((float(row.get("other") or 0) for row in counted), default=0.0)
        peak = max((float(row.get("peak") or 0) for row in counted), default=0.0)
        if _MIN_GROWTH * peak < left * steps < _GROWTH_SLACK * before:
            found.append(MemoryGrowth(left, left * steps, steps))
    return max(found, key=lambda each: each.total, default=None)


def _steps_before(record: Record) -> int:
    """Number of steps of a rank before the counted one: warm-up and timed steps."""
    each = (record.warmup_losses, record.samples.get("step_s", []))
    return sum(len(ranks[0]) for ranks in each if ranks)


@dataclass(frozen=True)
class MemoryOutlier:
    """Rank that needs far more memory than all others; in bytes."""

    rank: int
    peak: float
    others: float
    """Highest peak of the other ranks."""


def _memory_outlier(record: Record | None) -> MemoryOutlier | None:
    """Rank of *record* with at least twice the peak of any other; None if none, or a peak is unknown."""
    samples = record.samples.get("memory_peak", []) if record else []
    known = [(ranks[0], rank) for rank, ranks in enumerate(samples) if ranks and ranks[0] is not None]
    peaks = sorted(known, reverse=True)
    if len(known) < max(2, len(samples)) or not peaks[1][0] or peaks[0][0] < _OUTLIER_RATIO * peaks[1][0]:
        return None
    return MemoryOutlier(peaks[0][1], peaks[0][0], peaks[1][0])


def still_speeds_up(row: CaseSummary) -> bool:
    """True if steps were still speeding up during timing."""
    return _drifts(row, are_unsettled)


def _slows_down(row: CaseSummary) -> bool:
    """True if steps became slower and slower during timing."""
    return _drifts(row, are_slowing)


def _drifts(row: CaseSummary, test: Callable[[Sequence[float], Sequence[float]], bool]) -> bool:
    chances, changes = row.values.get("drift_p"), row.values.get("drift")
    return bool(chances and changes and test(changes.trials, chances.trials))


def drift_sentences(measured: Sequence[CaseSummary], names: Mapping[str, str]) -> Iterator[str]:
    """Each finding once: the case with the largest value, and the others that have it too."""
    grown = {row.case.id: found for row in measured if (found := _memory_growth(row.representative_trial))}
    leaking = [row for row in measured if row.case.id in grown]
    if leaking:
        row = max(leaking, key=lambda each: grown[each.case.id].total)
        slower = f" Steps become slower{_drift_size(row)}." if _slows_down(row) else ""
        yield f"{_growth_text(grown[row.case.id], names[row.case.id])}{_others(leaking, row, names)}.{slower}"
    if slowing := [row for row in measured if _slows_down(row) and row not in leaking]:
        row = max(slowing, key=lambda each: each.values["drift"].value)
        yield (
            f"{names[row.case.id]}: steps became slower during timing{_drift_size(row)}: either "
            "their work grows or the machine slows down (distbench show --view "
            f"telemetry){_others(slowing, row, names)}."
        )
    yield from _outlier_sentences(measured, names)


def _growth_text(found: MemoryGrowth, name: str) -> str:
    return (
        f"{name}: memory grows by {format_bytes(found.per_step)} with every step, to "
        f"{format_bytes(found.total)} after {found.steps}: tensors of each step are kept, for "
        "example in a list of losses or logits"
    )


def _outlier_sentences(measured: Sequence[CaseSummary], names: Mapping[str, str]) -> Iterator[str]:
    found = [(row, one) for row in measured if (one := _memory_outlier(row.representative_trial))]
    if found:
        row, one = max(found, key=lambda pair: pair[1].peak / pair[1].others)
        others = _others([each for each, _ in found], row, names)
        yield (
            f"{names[row.case.id]}: rank {one.rank} needs {format_bytes(one.peak)}, every other "
            f"rank at most {format_bytes(one.others)}{others}."
        )


def _drift_size(row: CaseSummary) -> str:
    return f", by {row.values['drift'].value:.0%} of the median step from the first to the last"


def _others(rows: Sequence[CaseSummary], but: CaseSummary, names: Mapping[str, str]) -> str:
    others = [names[row.case.id] for row in rows if row is not but]
    return f"; likewise {join_limited(others, limit=3)}" if others else ""
