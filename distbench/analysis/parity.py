"""Fair fight? What the live engines of a comparison really did, held against the reference's."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

from distbench.analysis.meanings import Kind, meaning
from distbench.analysis.names import short_names
from distbench.analysis.settings import settings, text
from distbench.analysis.summary import CaseSummary
from distbench.analysis.text import listed

NOT_TOLD = "not told"
"""What stands for a setting that a trial's engine did not tell: absent is not equal."""

_PREFERRED = {"single": 0, "ddp": 1}


@dataclass(frozen=True)
class Difference:
    """One setting in which a case differs from its reference, or its trials from one another."""

    key: str
    expected: str
    """The reference's, or that of the first trial."""
    found: str
    """The case's, or those of the other trials."""
    kind: Kind
    """work: the numbers belong to other work. speed: the same work at another pace. strategy: what
    the comparison is about. unknown: a key that nobody classified, a finding of lower rank."""
    why: str
    between: Literal["cases", "trials"] = "cases"

    @property
    def is_known(self) -> bool:
        """Whether both told the setting."""
        return NOT_TOLD not in (self.expected, self.found)

    def __str__(self) -> str:
        if self.between == "trials":
            return f"{self.key} = {self.expected} in one trial and {self.found} in another: {self.why}"
        if not self.is_known:
            return f"{self.key} = {self.found}, of the reference {self.expected}: can't be compared"
        return f"{self.key} = {self.found}, the reference has {self.expected}: {self.why}"


@dataclass(frozen=True)
class Comparison:
    """Cases that were asked to do the same work."""

    reference: CaseSummary
    cases: tuple[CaseSummary, ...]
    differences: dict[str, tuple[Difference, ...]]
    """Case id -> its differences from the reference; and of its trials from one another."""

    @property
    def is_known(self) -> bool:
        """Whether any of the cases told what it did; else nothing can be said of any."""
        return _has_told(self.reference)

    def findings(self, row: CaseSummary) -> list[Difference]:
        """Return the differences of a case that change its work, then those that nobody can judge."""
        found = self.differences[row.case.id]
        return [each for kind in ("work", "unknown") for each in found if each.kind == kind]


def comparisons(cases: Sequence[CaseSummary]) -> tuple[Comparison, ...]:
    """Return the measured cases by the work that they were asked to do, each group with its reference.

    The reference is ``single`` (nothing of a strategy is in its way), else ``ddp``, else the first
    case; one that told nothing of itself can't be it. What a suite asks for on purpose (another
    precision, optimizer or global batch) makes another comparison.
    """
    return _comparisons(tuple(cases))


# everything that is said of a run asks for those of the same cases
@functools.lru_cache(maxsize=1)
def _comparisons(cases: tuple[CaseSummary, ...]) -> tuple[Comparison, ...]:
    groups: dict[str, list[CaseSummary]] = {}
    for row in cases:
        if row.detail is not None:
            groups.setdefault(_asked(row), []).append(row)
    return tuple(_compare(rows) for rows in groups.values())


def findings(cases: Sequence[CaseSummary]) -> dict[str, list[Difference]]:
    """Return the findings of each case that has any, by case id."""
    return {
        row.case.id: found
        for comparison in comparisons(cases)
        for row in comparison.cases
        if (found := comparison.findings(row))
    }


def other_work(cases: Sequence[CaseSummary]) -> dict[str, list[str]]:
    """Return each change of the work with its cases: what strict parity forbids."""
    found: dict[str, list[str]] = {}
    for comparison in comparisons(cases):
        for row in comparison.cases:
            for each in comparison.findings(row):
                if each.kind == "work":
                    found.setdefault(str(each), []).append(row.case.name)
        if not comparison.is_known and len(comparison.cases) > 1:
            names = [row.case.name for row in comparison.cases]
            found.setdefault("nothing is known of what was done", []).extend(names)
    return found


@dataclass(frozen=True)
class Footnotes:
    """Marks beside the numbers that a finding touches, and what they mean."""

    marks: dict[str, str]
    """Case id -> its mark, ``[a]`` or ``[a,c-e]``."""
    sentences: dict[str, str]
    """``[a]`` -> the finding; the same finding has the same letter in every case."""


def footnotes(cases: Sequence[CaseSummary]) -> Footnotes:
    """Return the footnotes of all findings of *cases*."""
    return _footnotes(tuple(cases))


@functools.lru_cache(maxsize=1)
def _footnotes(cases: tuple[CaseSummary, ...]) -> Footnotes:
    numbers: dict[str, int] = {}
    marks = {}
    for case_id, found in findings(cases).items():
        mine = [numbers.setdefault(sentence, len(numbers)) for sentence in _sentences(found)]
        marks[case_id] = f"[{_letters(sorted(mine))}]"
    return Footnotes(marks, {f"[{_letter(number)}]": sentence for sentence, number in numbers.items()})


def marked_names(rows: Sequence[CaseSummary], run: Sequence[CaseSummary]) -> dict[str, str]:
    """Return the short names of *rows* by case id, with the marks that they have in the whole *run*."""
    marks = footnotes(run).marks
    return {key: name + marks.get(key, "") for key, name in short_names([row.case for row in rows]).items()}


def _sentences(found: list[Difference]) -> list[str]:
    """Return one sentence for each finding that changes the work, and one for all the others."""
    told = [
        f"Not {'' if each.is_known else 'known to be '}the same work: {each}."
        for each in found
        if each.kind == "work"
    ]
    if unknown := [each.key for each in found if each.kind == "unknown"]:
        told.append(f"Not known to be the same work, for nobody has classified {listed(unknown)}.")
    return told


def _asked(row: CaseSummary) -> str:
    case = row.case
    asked = (case.workload, case.data, case.device, case.precision, case.optimizer, case.seed)
    return repr((*asked, case.batch.global_batch_size, case.activation_checkpointing))


def _compare(rows: list[CaseSummary]) -> Comparison:
    ranked = sorted(rows, key=_rank)
    expected = _settings(ranked[0])
    if expected.get("dtypes.reduce") is None:
        # one device reduces nothing, so those that do are held against the first that does
        others = (_settings(row).get("dtypes.reduce") for row in ranked[1:])
        expected = {**expected, "dtypes.reduce": next((dtype for dtype in others if dtype), None)}
    known = _has_told(ranked[0])
    differences = {row.case.id: tuple(_differences(expected, row)) if known else () for row in rows}
    return Comparison(ranked[0], tuple(rows), differences)


def _rank(row: CaseSummary) -> tuple[bool, int, int]:
    return not _has_told(row), _PREFERRED.get(row.case.label, len(_PREFERRED)), row.case.world_size


def _has_told(row: CaseSummary) -> bool:
    return row.detail is not None and bool(row.detail.effective)


def _settings(row: CaseSummary) -> dict[str, Any]:
    return settings(row.detail) if row.detail else {}


def _differences(expected: dict[str, Any], row: CaseSummary) -> Iterator[Difference]:
    assert row.detail is not None
    if not _has_told(row):
        # one finding, not one for each setting
        yield Difference("effective", "told", NOT_TOLD, *meaning("effective"))
        return
    found = _settings(row)
    for key in sorted({**expected, **found}):
        kind, why = meaning(key)
        one_sided = key not in expected or key not in found
        # what only one strategy has can't be compared; a single device reduces nothing
        if (kind == "strategy" and one_sided) or (key == "dtypes.reduce" and _reduces_nothing(found)):
            continue
        if one_sided or expected[key] != found[key]:
            yield Difference(key, _told(expected, key), _told(found, key), kind, why)
    for key, (first, *rest) in row.unsteady.items():
        kind, why = meaning(key)
        # a strategy that shards otherwise from trial to trial is not one case
        kind = "work" if kind == "strategy" else kind
        yield Difference(key, first, " or ".join(rest), kind, why, "trials")


def _reduces_nothing(found: dict[str, Any]) -> bool:
    return found.get("world_size") == 1 and found.get("dtypes.reduce", "") is None


def _told(of: dict[str, Any], key: str) -> str:
    return text(of[key]) if key in of else NOT_TOLD


def _letters(numbers: list[int]) -> str:
    """Return the letters of ascending *numbers*, three and more in a row as ``a-c``."""
    told = []
    for _, group in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        row = [_letter(number) for _, number in group]
        told += [f"{row[0]}-{row[-1]}"] if len(row) > 2 else row
    return ",".join(told)


def _letter(number: int) -> str:
    """Return a, b, ... z, aa, ab, ..."""
    head, tail = divmod(number, 26)
    return (_letter(head - 1) if head else "") + chr(ord("a") + tail)
