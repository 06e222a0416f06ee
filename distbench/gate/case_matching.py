"""Which cases of two arms are compared with each other."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from distbench.core.case import MEANS, Case
from distbench.core.grouping import grouped
from distbench.gate.series import Slot
from distbench.gate.verdicts import CaseVerdict, Finding, Word
from distbench.plan import Plan, Planned


@dataclass(frozen=True)
class Match:
    """Matched cases of two arms."""

    slots: list[Slot]
    verdicts: list[CaseVerdict]
    """Verdicts on cases that can't run in pairs."""
    skipped: dict[str, str]
    """Case that is new, or can't run here in either arm -> reason."""


def match(baseline: Plan, candidate: Plan) -> Match:
    """Pair the cases of two plans: those of the same id or name, else those at the same place."""
    mates = _mates(baseline.cases, candidate.cases)
    matched = Match([], [], {})
    paired = {mate.case.id for mate in mates if mate}
    for own, mate in zip(candidate.cases, mates, strict=True):
        if mate is None:
            matched.skipped[own.case.name] = "new: the baseline has no such case"
        elif own.problem and mate.problem:
            matched.skipped[own.case.name] = own.problem
        elif unequal := _unequal(mate, own):
            matched.verdicts.append(verdict(own.case, *unequal))
        else:
            matched.slots.append(Slot(mate.case, own.case))
    for gone in (item for item in baseline.cases if item.case.id not in paired and not item.problem):
        matched.verdicts.append(verdict(gone.case, "missing", "the candidate has no such case"))
    return matched


def _mates(baseline: Sequence[Planned], candidate: Sequence[Planned]) -> list[Planned | None]:
    """Baseline case of each candidate case; None if the candidate's is new.

    A changed option may show in the names, so cases that match neither by id nor by name are paired in
    order within a strategy and world size, if both arms have the same number of them. Different strategies
    are compared only if no case matches otherwise: then that comparison is what the user wants.
    """
    by_id = {item.case.id: item for item in baseline}
    by_name = {item.case.name: item for item in baseline}
    mates = [by_id.get(item.case.id) or by_name.get(item.case.name) for item in candidate]
    _pair_leftovers(mates, baseline, candidate, lambda item: (item.case.strategy.name, item.case.world_size))
    if not any(mates):
        _pair_leftovers(mates, baseline, candidate, lambda _: None)
    return mates


def _pair_leftovers(
    mates: list[Planned | None],
    baseline: Sequence[Planned],
    candidate: Sequence[Planned],
    kind: Callable[[Planned], Hashable],
) -> None:
    """Fill the gaps in *mates* from the rest of *baseline*, where both have the same number of a kind."""
    left = grouped([item for item in baseline if item not in mates], kind)
    unmatched = grouped([item for item, mate in zip(candidate, mates, strict=True) if mate is None], kind)
    for key, items in unmatched.items():
        if len(left.get(key, [])) == len(items):
            for item, mate in zip(items, left[key], strict=True):
                mates[candidate.index(item)] = mate


def _unequal(baseline: Planned, candidate: Planned) -> tuple[Word, str] | None:
    """Verdict on two matched cases that can't run as a pair, and why."""
    if candidate.problem:
        return "broken", f"runs in the baseline but not here: {candidate.problem}"
    if baseline.problem:
        return "incomparable", f"can't run in the baseline: {baseline.problem}"
    pairs = zip(baseline.case.work(MEANS), candidate.case.work(MEANS), strict=True)
    differing = ", ".join(axis for (axis, before), (_, after) in pairs if before != after)
    return ("incomparable", f"different configuration: {differing}") if differing else None


def verdict(case: Case, word: Word, why: str) -> CaseVerdict:
    """Verdict on *case*, whose numbers can't be judged."""
    return CaseVerdict(case.name, case.label, case.world_size, (Finding("trial", word, why),))
