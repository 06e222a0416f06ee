"""The cases of a run as candidates of a choice, from their records alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from distbench.analysis.case_names import parts, short_names
from distbench.analysis.case_summary import MEMORY, THROUGHPUT, CaseSummary, comparable
from distbench.analysis.choice import Candidate
from distbench.analysis.loss_deviation import BY_DESIGN
from distbench.analysis.parity import Difference
from distbench.analysis.settings import description_of
from distbench.analysis.statistics.intervals import Interval, Noise, noise_of
from distbench.core.case import CHOICES, CURRENT, Axis, Precision
from distbench.core.grouping import grouped
from distbench.core.text import one_line
from distbench.core.units import number_text

RESERVED, ENERGY = "memory_reserved_peak", "energy_per_token"
WHOLE = ("gpu_memory_own", "memory_device_peak")
"""All that is in use of a GPU: by the ranks, as NVML reports it; else by anybody, as CUDA does."""
OUTSIDE = 2.0**30
"""Bytes of a GPU that a process is assumed to take outside of torch's allocator (CUDA's context, kernels,
the buffers of NCCL and cuBLAS), where neither NVML nor CUDA reported it: the middle of the half to two GiB
that are common."""


def candidates(cases: Sequence[CaseSummary], unfair: Mapping[str, Sequence[Difference]]) -> list[Candidate]:
    """Cases of a run as candidates; *unfair* are the parity findings by case id."""
    rank = {row.case.id: place for place, row in enumerate(sorted(cases, key=_moving_parts))}
    names, works = _names(cases), _works(cases)
    made = [
        Candidate(
            id=row.case.id,
            name=names[row.case.id],
            label=one_line(row.case.label),
            devices=row.case.world_size,
            precision=_precision(row.case.precision),
            work=works[row.case.id],
            simplicity=rank[row.case.id],
            speed=_interval(row, THROUGHPUT),
            memory=memory,
            memory_assumed=assumed,
            joules=_interval(row, ENERGY),
            barred=barred,
            is_noisy=bool(row.degraded) and barred == _noisy(row),
            unknown=row.absent.get(THROUGHPUT, "not measured"),
            memory_unknown=row.absent.get(MEMORY, "not measured"),
            joules_unknown=row.absent.get(ENERGY, "not measured"),
        )
        for row in cases
        for memory, assumed in [_needed(row)]
        for barred in [_barred(row, unfair.get(row.case.id, []))]
    ]
    places = grouped(made, lambda one: (one.devices, one.work, one.precision)).values()
    together = {one.id: sum(other.speed is not None for other in place) for place in places for one in place}
    return [_among(one, together[one.id]) for one in made]


def _among(one: Candidate, count: int) -> Candidate:
    """*one* as one of *count* candidates, any two of which may be compared."""
    speed, joules = (number and number.among(count) for number in (one.speed, one.joules))
    return replace(one, speed=speed, joules=joules)


def _interval(row: CaseSummary, column: str) -> Interval | None:
    estimate = row.values.get(column)
    return estimate.interval if estimate else None


def _names(cases: Sequence[CaseSummary]) -> dict[str, str]:
    """Names that are short among the cases on the same number of devices: only those are compared."""
    by_size = grouped((row.case for row in cases), lambda case: case.world_size)
    return {key: name for mine in by_size.values() for key, name in short_names(mine).items()}


def noises(cases: Sequence[CaseSummary]) -> dict[int, Noise]:
    """Noise of throughput on each number of devices on which a case was measured twice."""
    by_size = sorted(_by_size(cases, THROUGHPUT).items())
    noises = ((size, noise_of([row.positive(THROUGHPUT) for row in rows])) for size, rows in by_size)
    return {size: noise for size, noise in noises if noise}


def _barred(row: CaseSummary, differences: Sequence[Difference]) -> str:
    """Why a case is never recommended; empty if it may be."""
    if not row.measured:
        return f"{row.status}: {one_line(row.reason)}" if row.reason else row.status
    if voided := [verdict for verdict in row.verdicts.values() if verdict.voids]:
        # the whole sentence stands among the verdicts of that kind
        return f"{voided[0].kind}: {one_line(voided[0].sentence.partition('; ')[0])}"
    # what can't be compared is a doubt, mentioned next to the answer, not a failure
    if unfair := [each for each in differences if each.kind == "work" and each.is_known]:
        return f"not the same work: {one_line(str(unfair[0]))}"
    return _unproven(row) or (_noisy(row) if row.degraded else "")


def _unproven(row: CaseSummary) -> str:
    """Why a case that is another training by design may train worse; empty if it is none, or shown not to."""
    design = row.unproven
    if design is None:
        return ""
    judged = row.verdicts.get("convergence")
    shown = (
        one_line(judged.sentence)
        if judged
        else "nothing shows that it converges as well; add converge to the suite"
    )
    return f"{BY_DESIGN}: {one_line(design.why)}; {shown}"


def _noisy(row: CaseSummary) -> str:
    return f"measured on a noisy machine: {one_line(row.degraded)}"


def _needed(row: CaseSummary) -> tuple[float | None, float]:
    """Memory that a device must have, and how much of that nothing has measured.

    On a GPU all that was in use of it (``WHOLE``), and no less than the allocator's segments, which a
    large device lets grow beyond need; on a CPU the tensors.
    """
    peak = row.values.get(RESERVED) or row.values.get(MEMORY)
    if peak is None or row.case.device == "cpu":
        return peak.value if peak else None, 0.0
    whole = next((row.values[name] for name in WHOLE if name in row.values), None)
    return (max(peak.value, whole.value), 0.0) if whole else (peak.value + OUTSIDE, OUTSIDE)


def _by_size(cases: Sequence[CaseSummary], column: str) -> dict[int, list[CaseSummary]]:
    """Cases with trials of *column* that can be in a ratio, by number of devices."""
    return grouped((row for row in cases if row.positive(column)), lambda row: row.case.world_size)


def _works(cases: Sequence[CaseSummary]) -> dict[str, str]:
    """What each case trains on what, in words that distinguish the works of this run."""
    # with one batch a world size the suite scales weakly or strongly; with several, they are other work
    batches = {(row.case.world_size, row.case.batch.global_batch_size) for row in cases}
    fixed = len({size for size, _ in batches}) == len(batches)
    but: tuple[Axis, ...] = (*CHOICES, "world_size", "precision", *(("batch",) if fixed else ()))
    groups = grouped((row.case for row in cases), lambda case: case.work(but))
    if len(groups) <= 1:
        return {row.case.id: "" for row in cases}
    everywhere = set.intersection(*(set(parts(row.case)) for row in cases))
    names: dict[str, str] = {}
    for number, mine in enumerate(groups.values(), 1):
        shared = [part for part in parts(mine[0]) if all(part in parts(case) for case in mine)]
        words = ", ".join(part for part in shared if part not in everywhere) or f"work {number}"
        name = f"{words} ({number})" if words in names.values() else words
        names |= {case.id: name for case in mine}
    return names


def _precision(precision: Precision) -> str:
    usual = Precision(compute=precision.compute)
    words: list[str] = [precision.label]
    for name in ("reduce", "master", "optimizer_state"):
        if getattr(precision, name) != getattr(usual, name):
            words.append(f"{name} {getattr(precision, name)}")
    if precision.loss_scale is not None:
        scale = precision.loss_scale
        words.append(f"loss scale {scale if isinstance(scale, str) else number_text(scale)}")
    return ", ".join(words)


def _moving_parts(row: CaseSummary) -> tuple[bool, int, int, bool]:
    """What a case brings with it: another Python, offloads, its strategy's own order, recomputation."""
    strategy, case = description_of(row.case, row.detail), row.case
    recomputes = case.activation_checkpointing != "none"
    return case.environment != CURRENT, len(strategy.offloads), strategy.simplicity, recomputes


def fronts(cases: Sequence[CaseSummary]) -> list[list[CaseSummary]]:
    """Pareto front of each number of devices and each work in one precision, lowest memory first.

    A case is left out if another has at least its throughput with no more memory, and is better in one
    of the two. Of cases equal in both, the first in the suite represents all. By estimate: neighbours may be
    statistically tied. What may train worse (``CaseSummary.unproven``) is on no front, and keeps none off it.
    """
    known = [row for row in cases if {THROUGHPUT, MEMORY} <= row.values.keys() and not row.unproven]
    return [_front(rows) for rows in comparable(known)]


def _front(rows: Sequence[CaseSummary]) -> list[CaseSummary]:
    front: list[CaseSummary] = []
    for row in sorted(rows, key=lambda row: (row.values[MEMORY].value, -row.values[THROUGHPUT].value)):
        if not front or row.values[THROUGHPUT].value > front[-1].values[THROUGHPUT].value:
            front.append(row)
    return front
