"""Match the cases of two arms."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from distbench.core.case import EXECUTION_FIELDS, Case
from distbench.core.grouping import group_by
from distbench.gate.series import CaseSlot
from distbench.gate.verdicts import CaseVerdict, GateVerdict, MetricFinding
from distbench.plan import Plan, PlannedCase


@dataclass(frozen=True)
class CaseMatch:
    """Matched cases of two arms."""

    slots: list[CaseSlot]
    verdicts: list[CaseVerdict]
    """Verdicts on cases that can't run in pairs."""
    skipped: dict[str, str]
    """Case that is new, or can't run here in either arm -> reason."""


def match_cases(baseline: Plan, candidate: Plan) -> CaseMatch:
    """Pair the cases of two plans: those of the same id or name, else those at the same position."""
    mates = _baseline_cases(baseline.cases, candidate.cases)
    matched = CaseMatch([], [], {})
    paired = {mate.case.id for mate in mates if mate}
    for own, mate in zip(candidate.cases, mates, strict=True):
        if mate is None:
            matched.skipped[own.case.name] = "new: the baseline has no such case"
        elif own.problem and mate.problem:
            matched.skipped[own.case.name] = own.problem
        elif unequal := _pairing_problem(mate, own):
            matched.verdicts.append(unmeasured_verdict(own.case, *unequal))
        else:
            matched.slots.append(CaseSlot(mate.case, own.case))
    for gone in (item for item in baseline.cases if item.case.id not in paired and not item.problem):
        matched.verdicts.append(unmeasured_verdict(gone.case, "missing", "the candidate has no such case"))
    return matched


def _baseline_cases(
    baseline: Sequence[PlannedCase], candidate: Sequence[PlannedCase]
) -> list[PlannedCase | None]:
    """Baseline case of each candidate case; None if the candidate's is new.

    A changed option may show in the names, so cases that match neither by id nor by name are paired in
    order within a strategy and world size, if both arms have the same number of them. Different strategies
    are compared only if no case matches otherwise: then that comparison is what the user wants.
    """
    by_id = {item.case.id: item for item in baseline}
    by_name = {item.case.name: item for item in baseline}
    mates = [by_id.get(item.case.id) or by_name.get(item.case.name) for item in candidate]
    _pair_by_order(mates, baseline, candidate, lambda item: (item.case.strategy.name, item.case.world_size))
    if not any(mates):
        _pair_by_order(mates, baseline, candidate, lambda _: None)
    return mates


def _pair_by_order(
    mates: list[PlannedCase | None],
    baseline: Sequence[PlannedCase],
    candidate: Sequence[PlannedCase],
    kind: Callable[[PlannedCase], Hashable],
) -> None:
    """Fill the gaps in *mates* from the rest of *baseline*, where both have the same number of a kind."""
    left = group_by([item for item in baseline if item not in mates], kind)
    unmatched = group_by([item for item, mate in zip(candidate, mates, strict=True) if mate is None], kind)
    for key, items in unmatched.items():
        if len(left.get(key, [])) == len(items):
            for item, mate in zip(items, left[key], strict=True):
                mates[candidate.index(item)] = mate


def _pairing_problem(baseline: PlannedCase, candidate: PlannedCase) -> tuple[GateVerdict, str] | None:
    """Verdict on two matched cases that can't run as a pair, and the reason; None if they can."""
    if candidate.problem:
        return "broken", f"runs in the baseline but not here: {candidate.problem}"
    if baseline.problem:
        return "incomparable", f"can't run in the baseline: {baseline.problem}"
    pairs = zip(
        baseline.case.work_key(EXECUTION_FIELDS), candidate.case.work_key(EXECUTION_FIELDS), strict=True
    )
    differing = ", ".join(axis for (axis, before), (_, after) in pairs if before != after)
    return ("incomparable", f"different configuration: {differing}") if differing else None


def unmeasured_verdict(case: Case, word: GateVerdict, why: str) -> CaseVerdict:
    """Verdict on *case*, whose numbers can't be judged."""
    return CaseVerdict(case.name, case.label, case.world_size, (MetricFinding("trial", word, why),))
