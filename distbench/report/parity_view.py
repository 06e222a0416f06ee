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
    "speed": "changes the pace, not the work",
    "strategy": "is what the comparison is about",
}
_MOST_NAMES = 20
_LONGEST = 18


def table(cases: Sequence[CaseSummary]) -> Table:
    """Return the view of *cases*."""
    rows: list[tuple[str, ...]] = []
    notes: list[str] = []
    for comparison in comparisons(cases):
        parity = _Parity(comparison)
        rows += parity.rows()
        notes += parity.notes()
    return Table("parity", "Fair fight?", _CAPTION, _HEADINGS, tuple(rows), tuple(notes))


class _Parity:
    """One comparison: its differences with the cases that have them."""

    def __init__(self, comparison: Comparison) -> None:
        self._comparison = comparison
        # the reference is often at another world size, which would stand in every other name
        reference = comparison.reference
        others = [row.case for row in comparison.cases if row is not reference]
        self._names = {**short_names([reference.case]), **short_names(others)}
        self._reference = one_line(reference.case.name)
        self._cases: dict[Difference, list[str]] = {}
        for case_id, differences in comparison.differences.items():
            for each in differences:
                self._cases.setdefault(each, []).append(self._names[case_id])

    def rows(self) -> list[tuple[str, ...]]:
        """Return the differences, those that change the work first."""
        found: list[tuple[str, ...]] = []
        for kind, title in _KINDS.items():
            if alike := sorted((each for each in self._cases if each.kind == kind), key=lambda d: d.key):
                found.append((f"{title}, against {self._reference}",))
                found += [self._row(each) for each in alike]
        return found

    def notes(self) -> list[str]:
        """Return the verdict in a sentence, and which cases a finding touches."""
        others = len(self._comparison.cases) - 1
        touched = [row for row in self._comparison.cases if self._comparison.findings(row)]
        if touched:
            serious = [each for each in self._cases if each.kind in ("work", "unknown")]
            return [
                f"{len(touched)} of the {others + 1} cases differ from the work of {self._reference}.",
                *(f"{each} ({listed(self._cases[each], _MOST_NAMES)})." for each in serious),
            ]
        if not self._comparison.is_known:
            return [f"Not known: none of {others + 1} cases, such as {self._reference}, told what it did."]
        if not others:
            return [f"{self._reference} has nothing to be compared with."]
        beside = "The case" if others == 1 else f"All {others} cases"
        return [f"{beside} beside {self._reference} did the same work as it did."]

    def _row(self, each: Difference) -> tuple[str, ...]:
        names = self._cases[each]
        told = names[0] if len(names) == 1 else f"{len(names)} of {len(self._comparison.cases)}"
        return each.key, one_line(each.expected, _LONGEST), one_line(each.found, _LONGEST), told
