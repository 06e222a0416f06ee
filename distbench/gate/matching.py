"""Which cases of two arms are held against each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from distbench.case import Case
from distbench.gate.series import Slot
from distbench.gate.verdicts import CaseVerdict, Finding, Word
from distbench.plan import Plan, Planned

_WORK = ("workload", "data", "world_size", "device", "optimizer", "precision", "seed")


@dataclass(frozen=True)
class Match:
    """The cases of two arms, held against each other."""

    slots: list[Slot]
    verdicts: list[CaseVerdict]
    """Of cases that can't be run in pairs."""
    skipped: dict[str, str]
    """Case that is new, or can't run here in either arm -> why."""


def match(baseline: Plan, candidate: Plan) -> Match:
    """Pair the cases of two plans: those of the same id or name, else those at the same place."""
    mates = _mates(baseline.cases, candidate.cases)
    found = Match([], [], {})
    taken = {mate.case.id for mate in mates if mate}
    for mine, mate in zip(candidate.cases, mates, strict=True):
        if mate is None:
            found.skipped[mine.case.name] = "new: the baseline has no such case"
        elif mine.problem and mate.problem:
            found.skipped[mine.case.name] = mine.problem
        elif mine.problem:
            found.verdicts.append(
                verdict(mine.case, trial("broken", f"runs in the baseline: {mine.problem}"))
            )
        elif mate.problem:
            said = f"can't run in the baseline: {mate.problem}"
            found.verdicts.append(verdict(mine.case, trial("incomparable", said)))
        elif apart := _other_work(mate, mine):
            found.verdicts.append(
                verdict(mine.case, trial("incomparable", f"asked to do other work: {apart}"))
            )
        else:
            found.slots.append(Slot(mate.case, mine.case))
    for gone in (item for item in baseline.cases if item.case.id not in taken and not item.problem):
        found.verdicts.append(verdict(gone.case, trial("missing", "the candidate has no such case")))
    return found


def _mates(baseline: Sequence[Planned], candidate: Sequence[Planned]) -> list[Planned | None]:
    """Return the mate of each candidate's case, None if it is new.

    A change of an option may stand in the names, so what is left over by id and name is paired in its
    order within a strategy and world size, if both arms have as many. Only if nothing is alike are other
    strategies held against each other: then that is what was asked for.
    """
    by_id = {item.case.id: item for item in baseline}
    by_name = {item.case.name: item for item in baseline}
    found = [by_id.get(item.case.id) or by_name.get(item.case.name) for item in candidate]
    _pair_leftovers(found, baseline, candidate, lambda item: (item.case.strategy.name, item.case.world_size))
    if not any(found):
        _pair_leftovers(found, baseline, candidate, lambda _: None)
    return found


def _pair_leftovers(
    found: list[Planned | None],
    baseline: Sequence[Planned],
    candidate: Sequence[Planned],
    kind: Callable[[Planned], object],
) -> None:
    """Fill the gaps of *found* with what is left of *baseline*, where a kind has as many in both."""
    left = _grouped([item for item in baseline if item not in found], kind)
    lacking = _grouped([item for item, mate in zip(candidate, found, strict=True) if mate is None], kind)
    for key, items in lacking.items():
        if len(left.get(key, [])) == len(items):
            for item, mate in zip(items, left[key], strict=True):
                found[candidate.index(item)] = mate


def _grouped(items: Sequence[Planned], kind: Callable[[Planned], object]) -> dict[object, list[Planned]]:
    groups: dict[object, list[Planned]] = {}
    for item in items:
        groups.setdefault(kind(item), []).append(item)
    return groups


def _other_work(baseline: Planned, candidate: Planned) -> str:
    before, after = baseline.case.to_json(), candidate.case.to_json()
    apart = [key for key in _WORK if before[key] != after[key]]
    if before["batch"]["global_batch_size"] != after["batch"]["global_batch_size"]:
        apart.append("batch.global_batch_size")
    return ", ".join(apart)


def trial(word: Word, said: str) -> Finding:
    """Return the verdict on a case whose numbers can't be judged."""
    return Finding("trial", word, said)


def verdict(case: Case, finding: Finding) -> CaseVerdict:
    """Return the verdict on *case* that consists of *finding* alone."""
    return CaseVerdict(case.name, case.label, case.world_size, (finding,))
