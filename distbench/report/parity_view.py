"""The view ``parity``: whether the cases of a comparison did the same work, differences first."""

from __future__ import annotations

from collections.abc import Sequence

from distbench.analysis.names import short_names
from distbench.analysis.parity import Comparison, Difference, comparisons
from distbench.analysis.summary import CaseSummary
from distbench.analysis.text import listed, one_line
from distbench.report.tables import Table

_CAPTION = (
    "What the live engines and processes really did, read back from their objects, against the reference "
    "of each comparison (single, else ddp): cases that were asked for the same model, data, precision, "
    "optimizer and global batch."
)
_HEADINGS = ("setting", "reference", "found", "cases")
_KINDS = {
    "work": "changes the work",
    "unknown": "nobody has said what it changes",
    "speed": "changes the pace",
    "strategy": "is what the comparison is about",
}


def table(cases: Sequence[CaseSummary]) -> Table:
    """Return the view of *cases*."""
    rows: list[tuple[str, ...]] = []
    notes = []
    found = comparisons(cases)
    names = short_names([row.case for comparison in found for row in comparison.cases])
    for comparison in found:
        differences = _by_difference(comparison)
        for kind, title in _KINDS.items():
            if alike := [each for each in differences if each.kind == kind]:
                rows.append((f"{title}, against {names[comparison.reference.case.id]}",))
                rows += [_row(each, differences[each], names) for each in alike]
        notes.append(_verdict(comparison, names))
    return Table("parity", "Fair fight?", _CAPTION, _HEADINGS, tuple(rows), tuple(notes))


def _by_difference(comparison: Comparison) -> dict[Difference, list[str]]:
    cases: dict[Difference, list[str]] = {}
    for case_id, differences in comparison.differences.items():
        for each in differences:
            cases.setdefault(each, []).append(case_id)
    return dict(sorted(cases.items(), key=lambda item: item[0].key))


def _row(each: Difference, cases: list[str], names: dict[str, str]) -> tuple[str, ...]:
    told = listed([names[case_id] for case_id in cases], most=1)
    return each.key, one_line(each.expected, 16), one_line(each.found, 16), told


def _verdict(comparison: Comparison, names: dict[str, str]) -> str:
    reference = names[comparison.reference.case.id]
    others = len(comparison.cases) - 1
    if not others:
        return f"{reference} has nothing to be compared with."
    touched = [row for row in comparison.cases if comparison.findings(row)]
    if not touched:
        return f"The {others} cases beside {reference} did the same work as it did."
    told = listed([names[row.case.id] for row in touched], most=4)
    return f"{len(touched)} of {others} cases beside {reference} differ in the work that they did: {told}."
