"""Assessment of proposed cases on a machine: unsupported, too large, unknown, or fitting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from distbench.cli.machine_proposals import Proposal
from distbench.core.machine import Machine
from distbench.core.units import format_bytes
from distbench.plan import PlannedCase, make_plan
from distbench.prediction.memory import predict_memory
from distbench.prediction.memory_fit import fits
from distbench.suite import parse_suite_text


@dataclass(frozen=True)
class CaseAssessment:
    """A case, and whether it is proposed."""

    label: str
    world_size: int
    recomputation: str
    micro_batch: int
    refusal: str = ""
    """Reason against it; empty: none."""
    peak: float | None = None
    """Bytes of tensors on a rank that are too many; None: they aren't, or it is unknown."""
    unknown: str = ""
    """Reason why its memory is unknown; empty: it is known, or cannot matter."""
    has_room: bool = False
    """True if it fits with all that comes on top."""


def assess_cases(text: str, machine: Machine) -> Iterator[CaseAssessment]:
    """Yield the cases of the suite *text*, each with what speaks against it on *machine*."""
    for item in make_plan(parse_suite_text(text), machine).cases:
        case = item.case
        place = (
            case.label,
            case.world_size,
            case.activation_checkpointing,
            case.batch.micro_batch_size,
        )
        yield replace(CaseAssessment(*place), **_finding(item, machine))


def without_needless_recomputation(judged: Sequence[CaseAssessment]) -> Iterator[CaseAssessment]:
    """Yield *judged*, with a refusal of recomputation where a case fits without it."""
    free = {
        replace(each, recomputation="full")
        for each in judged
        if each.has_room and each.recomputation == "none"
    }
    for each in judged:
        is_idle = each.recomputation == "full" and replace(each, has_room=True) in free
        yield replace(each, refusal="they fit without recomputation, which takes time") if is_idle else each


def _finding(item: PlannedCase, machine: Machine) -> dict[str, Any]:
    """Fields of a judgement that differ from those of a case that fits."""
    if item.problem:
        # what to do about it is not of interest: other cases are proposed
        return {"refusal": item.problem.partition("; ")[0]}
    memory = predict_memory(item.case)
    if isinstance(memory, str):
        return {"unknown": memory}
    if (fit := fits(memory, item.case, machine)) != "no":
        return {"has_room": fit == "yes"}
    has = format_bytes(machine.device_memory or 0)
    return {"refusal": f"tensors on a rank, of {has} on a GPU", "peak": memory.peak.value}


def assessments_of(proposal: Proposal, judged: Sequence[CaseAssessment]) -> list[CaseAssessment]:
    """Those of the cases of *proposal* among *judged*."""
    label = proposal.label
    return [case for case in judged if case.label == label]
