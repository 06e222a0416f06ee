"""Compare effective settings with those of the reference case."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any, Literal

from distbench.analysis.case_names import is_plain
from distbench.analysis.case_summary import CaseSummary
from distbench.analysis.settings import (
    SettingKind,
    effective_settings,
    setting_meaning,
    setting_text,
    software_versions,
)
from distbench.core.case import CURRENT_ENVIRONMENT, EXECUTION_FIELDS, NATIVE_ENGINE
from distbench.core.grouping import group_by
from distbench.core.text import join_limited
from distbench.strategies.base import REFERENCE_STRATEGY, SPEED_BASELINE

_FIRST_BATCH_SETTING = "data.first_batch"
_PREFERRED_REFERENCES = (REFERENCE_STRATEGY, SPEED_BASELINE)


@dataclass(frozen=True)
class SettingDifference:
    """Setting in which a case differs from its reference, or its trials from each other."""

    key: str
    expected: str | None
    """Value of the reference, or of the first trial; None: not reported, which is not equal."""
    found: str | None
    """Value of the case, or of the other trials."""
    kind: SettingKind
    """work: the numbers belong to different work. speed: the same work at a different speed. strategy: what
    the comparison is about. unknown: an unclassified key, a finding of lower rank."""
    why: str
    between: Literal["cases", "trials"] = "cases"

    @property
    def is_known(self) -> bool:
        """True if both reported the setting."""
        return self.expected is not None and self.found is not None

    def __str__(self) -> str:
        if self.between == "trials":
            return f"{self.key} = {self.expected} in one trial and {self.found} in another: {self.why}"
        expected, value = (side or "not reported" for side in (self.expected, self.found))
        why = self.why if self.is_known else "can't be compared"
        return f"{self.key} = {value}, the reference has {expected}: {why}"


@dataclass(frozen=True)
class PeerGroup:
    """Cases that are meant to do the same work."""

    reference: CaseSummary
    cases: tuple[CaseSummary, ...]
    differences: dict[str, tuple[SettingDifference, ...]]
    """Case id -> its differences from the reference, and of its trials from each other."""

    @property
    def is_known(self) -> bool:
        """True if any of the cases reported its settings; otherwise none can be compared."""
        return _has_settings(self.reference)

    def findings(self, row: CaseSummary) -> list[SettingDifference]:
        """Differences of a case that change its work, then unclassified ones."""
        own = self.differences[row.case.id]
        return [difference for kind in ("work", "unknown") for difference in own if difference.kind == kind]


@dataclass(frozen=True)
class Footnotes:
    """Marks on the numbers that a finding affects, with their meaning."""

    marks: dict[str, str]
    """Case id -> its mark, ``[a]`` or ``[a,c-e]``."""
    sentences: dict[str, str]
    """``[a]`` -> the finding; the same finding has the same letter in every case."""


@dataclass(frozen=True, eq=False)
class Parity:
    """Differences in settings among the cases of a run."""

    groups: tuple[PeerGroup, ...]

    @classmethod
    def of(cls, cases: Sequence[CaseSummary]) -> Parity:
        """Compare the measured *cases*, grouped by the work that they are meant to do.

        The reference of a group is ``single`` (without any strategy), else ``ddp``, else the first case,
        unless it reported no settings. Differences that a suite requests (precision, optimizer or global
        batch) make separate groups.
        """
        measured = (row for row in cases if row.representative_trial is not None)
        groups = group_by(measured, lambda row: row.case.work_key((*EXECUTION_FIELDS, "world_size")))
        return cls(tuple(_compare_group(rows) for rows in groups.values()))

    @cached_property
    def findings(self) -> dict[str, list[SettingDifference]]:
        """Findings by case id, for cases that have any."""
        return {
            row.case.id: found
            for comparison in self.groups
            for row in comparison.cases
            if (found := comparison.findings(row))
        }

    @cached_property
    def footnotes(self) -> Footnotes:
        """Footnotes of all findings."""
        numbers: dict[str, int] = {}
        marks = {}
        for case_id, found in self.findings.items():
            mine = [numbers.setdefault(sentence, len(numbers)) for sentence in _sentences(found)]
            marks[case_id] = f"[{_letters(sorted(mine))}]"
        return Footnotes(marks, {f"[{_letter(number)}]": sentence for sentence, number in numbers.items()})

    def work_changes(self) -> dict[str, list[str]]:
        """Changes of the work with the names of their cases: strict parity forbids them."""
        changes: dict[str, list[str]] = {}
        for comparison in self.groups:
            for row in comparison.cases:
                for difference in comparison.findings(row):
                    if difference.kind == "work":
                        changes.setdefault(str(difference), []).append(row.case.name)
            if not comparison.is_known and len(comparison.cases) > 1:
                names = [row.case.name for row in comparison.cases]
                changes.setdefault("no case reported its effective settings", []).extend(names)
        return changes


def _sentences(found: list[SettingDifference]) -> list[str]:
    """One sentence for each finding that changes the work, and one for all others."""
    sentences = [
        f"Not {'' if difference.is_known else 'known to be '}the same work: {difference}."
        for difference in found
        if difference.kind == "work"
    ]
    if unknown := [difference.key for difference in found if difference.kind == "unknown"]:
        sentences.append(
            "Whether the work is the same is unknown, because these settings differ and are "
            f"unclassified: {join_limited(unknown)}."
        )
    return sentences


def _compare_group(rows: list[CaseSummary]) -> PeerGroup:
    ranked = sorted(rows, key=_reference_order)
    expected = _settings(ranked[0])
    if expected.get("dtypes.reduce") is None:
        # one device reduces nothing, and devices with the same rows no gradients; the others are compared
        # with the first of them
        others = (_settings(row).get("dtypes.reduce") for row in ranked[1:])
        expected = {**expected, "dtypes.reduce": next((dtype for dtype in others if dtype), None)}
    differences = {row.case.id: tuple(_differences(expected, row, ranked[0])) for row in rows}
    return PeerGroup(ranked[0], tuple(rows), differences)


def _reference_order(row: CaseSummary) -> tuple[bool, int, bool, bool, int, int]:
    preferred = next(
        (order for order, name in enumerate(_PREFERRED_REFERENCES) if is_plain(row.case, name)),
        len(_PREFERRED_REFERENCES),
    )
    is_other = row.case.environment != CURRENT_ENVIRONMENT
    framework = row.case.engine != NATIVE_ENGINE
    return not _has_settings(row), preferred, is_other, framework, len(row.case.env), row.case.world_size


def _share_all_rows(found: Mapping[str, Any]) -> bool:
    """True if all ranks work on the same rows, so no gradients need to be reduced."""
    sizes = [found.get(key) for key in ("micro_batch_size", "gradient_accumulation_steps")]
    numbers = [size for size in sizes if isinstance(size, int)]
    is_one_share = len(numbers) == 2 and math.prod(numbers) == found.get("global_batch_size")
    return found.get("world_size") == 1 or is_one_share


def _has_settings(row: CaseSummary) -> bool:
    return row.representative_trial is not None and bool(row.representative_trial.effective)


def _settings(row: CaseSummary) -> dict[str, Any]:
    if row.representative_trial is None:
        return {}
    versions = {
        f"software.{name}": version for name, version in software_versions(row.representative_trial).items()
    }
    return {**effective_settings(row.representative_trial), **versions}


def _differences(
    expected: dict[str, Any], row: CaseSummary, reference: CaseSummary
) -> Iterator[SettingDifference]:
    if not _has_settings(reference):
        return
    if not _has_settings(row):
        # one finding, not one for each setting
        yield SettingDifference("effective", "reported", None, *setting_meaning("effective"))
        return
    found = _settings(row)
    records = [record for record in (row.representative_trial, reference.representative_trial) if record]
    reduces_nothing = found.get("dtypes.reduce", "") is None and _share_all_rows(found)
    for key in sorted({**expected, **found}):
        kind, why = setting_meaning(key, *records)
        one_sided = key not in expected or key not in found
        # settings that only one strategy or only new records have can't be compared
        is_apart = kind == "strategy" or key == _FIRST_BATCH_SETTING
        if (is_apart and one_sided) or (key == "dtypes.reduce" and reduces_nothing):
            continue
        if one_sided or expected[key] != found[key]:
            yield SettingDifference(key, _text(expected, key), _text(found, key), kind, why)
    for key, (first, *rest) in row.varying_settings.items():
        kind, why = setting_meaning(key, *records)
        # a strategy that shards differently from trial to trial is not one case
        kind = "work" if kind == "strategy" else kind
        yield SettingDifference(key, first, " or ".join(rest), kind, why, "trials")


def _text(of: dict[str, Any], key: str) -> str | None:
    return setting_text(of[key]) if key in of else None


def _letters(numbers: list[int]) -> str:
    """Letters of ascending *numbers*, ranges of three or more as ``a-c``."""
    letters = []
    for _, group in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        row = [_letter(number) for _, number in group]
        letters += [f"{row[0]}-{row[-1]}"] if len(row) > 2 else row
    return ",".join(letters)


def _letter(number: int) -> str:
    """``a``, ``b``, ... ``z``, ``aa``, ``ab``, ..."""
    head, tail = divmod(number, 26)
    return (_letter(head - 1) if head else "") + chr(ord("a") + tail)
