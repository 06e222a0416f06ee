"""The cases of a run made ready for a choice, from what their records say alone."""

from __future__ import annotations

from collections.abc import Sequence

from distbench.analysis.choice import Candidate
from distbench.analysis.names import parts, short_names
from distbench.analysis.noise import Interval, Noise, intervals, noise_of
from distbench.analysis.parity import Difference, findings
from distbench.analysis.summary import MEMORY, THROUGHPUT, CaseSummary, Estimate
from distbench.analysis.text import one_line
from distbench.analysis.verdicts import sentence
from distbench.case import Case, Precision
from distbench.units import number_text

RESERVED, ENERGY = "memory_reserved_peak", "energy_per_token"

# what brings least with it first; what nobody knows comes last, in the order of the suite
_FAMILIES = ("single", "ddp", "dp", "fsdp", "zero")
_SHARDING = {"grad_op": 2, "full": 3, "hybrid": 4}
_NO_OFFLOAD = (None, False, "", "none")


def candidates(cases: Sequence[CaseSummary]) -> list[Candidate]:
    """Return every case of a run as a candidate."""
    places = sorted(range(len(cases)), key=lambda i: (*_moving_parts(cases[i].case), i))
    rank = {cases[i].case.id: place for place, i in enumerate(places)}
    names, works = _names(cases), _works(cases)
    speeds, energies = _intervals(cases, THROUGHPUT), _intervals(cases, ENERGY)
    unfair = findings(cases)
    return [
        Candidate(
            id=row.case.id,
            name=names[row.case.id],
            label=one_line(row.case.label),
            devices=row.case.world_size,
            precision=_precision(row.case.precision),
            work=works[row.case.id],
            simplicity=rank[row.case.id],
            speed=speeds.get(row.case.id),
            memory=_needed(row),
            joules=energies.get(row.case.id),
            barred=_barred(row, unfair.get(row.case.id, [])),
            unknown=row.absent.get(THROUGHPUT, "not measured"),
            memory_unknown=row.absent.get(MEMORY, "not measured"),
            joules_unknown=row.absent.get(ENERGY, "not measured"),
        )
        for row in cases
    ]


def _names(cases: Sequence[CaseSummary]) -> dict[str, str]:
    """Return names that are short among the cases on as many devices: they alone are held together."""
    by_size: dict[int, list[Case]] = {}
    for row in cases:
        by_size.setdefault(row.case.world_size, []).append(row.case)
    return {key: name for mine in by_size.values() for key, name in short_names(mine).items()}


def noises(cases: Sequence[CaseSummary]) -> dict[int, Noise]:
    """Return the noise of throughput on each number of devices on which a case was measured twice."""
    found = {size: noise_of(list(trials.values())) for size, trials in _trials(cases, THROUGHPUT).items()}
    return {size: noise for size, noise in sorted(found.items()) if noise}


def _barred(row: CaseSummary, found: Sequence[Difference]) -> str:
    """Return why a case is never recommended; nothing if it may be."""
    if not row.measured:
        return f"{row.status}: {one_line(row.reason)}" if row.reason else row.status
    if row.differs and row.verdict:
        return f"another training than its reference: {sentence(row.verdict)}"
    # what nobody can compare is a doubt, told beside the answer, and no failure
    if unfair := [each for each in found if each.kind == "work" and each.is_known]:
        return f"not the same work: {one_line(str(unfair[0]))}"
    if row.degraded:
        return f"disturbed while measured: {one_line(row.degraded)}"
    return ""


def _needed(row: CaseSummary) -> float | None:
    """Return what a device must have: on CUDA the segments that the allocator took, else its tensors."""
    found = row.values.get(RESERVED) or row.values.get(MEMORY)
    return found.high if found else None


def _intervals(cases: Sequence[CaseSummary], column: str) -> dict[str, Interval]:
    """Return the interval of each case; those on as many devices share their noise."""
    return {
        case_id: interval
        for trials in _trials(cases, column).values()
        for case_id, interval in zip(trials, intervals(list(trials.values())), strict=True)
    }


def _trials(cases: Sequence[CaseSummary], column: str) -> dict[int, dict[str, tuple[float, ...]]]:
    """Return the trials of each case by its id, by number of devices."""
    by_size: dict[int, dict[str, tuple[float, ...]]] = {}
    for row in cases:
        if (found := row.values.get(column)) and _positive(found):
            by_size.setdefault(row.case.world_size, {})[row.case.id] = found.trials
    return by_size


def _positive(estimate: Estimate) -> bool:
    return bool(estimate.trials) and min(estimate.trials) > 0


def _works(cases: Sequence[CaseSummary]) -> dict[str, str]:
    """Return for each case what it trains on what, in words that tell the works of this run apart."""
    # with one batch a world size the suite scales weakly or strongly; with several, they are other work
    batches = {(row.case.world_size, row.case.batch.global_batch_size) for row in cases}
    fixed = len({size for size, _ in batches}) == len(batches)
    groups: dict[str, list[Case]] = {}
    for row in cases:
        case = row.case
        work = (case.workload, case.data, case.optimizer, case.seed, case.device)
        groups.setdefault(repr((*work, None if fixed else case.batch.global_batch_size)), []).append(case)
    if len(groups) <= 1:
        return {row.case.id: "" for row in cases}
    everywhere = set.intersection(*(set(parts(row.case)) for row in cases))
    names: dict[str, str] = {}
    for number, mine in enumerate(groups.values(), 1):
        shared = [part for part in parts(mine[0]) if all(part in parts(case) for case in mine)]
        told = ", ".join(part for part in shared if part not in everywhere) or f"work {number}"
        name = f"{told} ({number})" if told in names.values() else told
        names |= {case.id: name for case in mine}
    return names


def _precision(precision: Precision) -> str:
    usual = Precision(compute=precision.compute)
    told = [str(precision.compute)]
    for name in ("reduce", "master", "optimizer_state"):
        if getattr(precision, name) != getattr(usual, name):
            told.append(f"{name} {getattr(precision, name)}")
    if precision.loss_scale is not None:
        told.append(f"loss scale {number_text(precision.loss_scale)}")
    return ", ".join(told)


def _moving_parts(case: Case) -> tuple[int, int, int, int]:
    """Return how much a case brings with it: offloads, another library, shards, recomputation."""
    options = case.strategy.options
    offloads = [key for key in options if "offload" in key and options[key] not in _NO_OFFLOAD]
    name, sharding = case.strategy.name, str(options.get("sharding"))
    family = _FAMILIES.index(name) if name in _FAMILIES else len(_FAMILIES)
    shards = options.get("stage", _SHARDING.get(sharding, 0))
    return len(offloads), family, shards, case.activation_checkpointing != "none"
