"""The view ``parity``: whether the cases of a comparison did the same work, differences first."""

from __future__ import annotations

from typing import ClassVar

from distbench.analysis.parity import Difference, PeerGroup
from distbench.analysis.run import AnalysedRun
from distbench.analysis.text import listed, one_line, short_names
from distbench.grouping import gathered
from distbench.report.sheet import Cell, Field, Row, Sheet
from distbench.report.view import View

_KINDS = {
    "work": "Changes the work",
    "unknown": "Unclassified",
    "speed": "Changes the pace, not the work",
    "strategy": "Intended differences",
}
_MOST_NAMES = 20
_NOT_REPORTED = "not reported"
_LONGEST = 18


class ParityView(View):
    """Whether the cases of a comparison did the same work, differences first."""

    title: ClassVar[str] = "Did every case do the same work?"
    place: ClassVar[int] = 90
    caption: ClassVar[str] = (
        "What the live engines and processes really did, read back from their objects, against the reference "
        "of each comparison (single, else ddp): cases with the same requested model, data, precision, "
        "optimizer and global batch."
    )
    fields: ClassVar[tuple[Field, ...]] = (
        Field("setting", "setting", "Setting of the live engine or process.", type="varchar"),
        Field("reference_case", "", "Name of the reference of the comparison.", type="varchar"),
        Field("kind", "", "work, unknown, speed or strategy: what the difference changes.", type="varchar"),
        Field("reference", "reference", "What the reference did.", type="varchar"),
        Field("found", "found", "What the cases did.", type="varchar"),
        Field("cases", "cases", "Names of the cases, separated by commas.", type="varchar"),
    )

    def sheet(self, run: AnalysedRun) -> Sheet:
        """A row for each difference, those that change the work first."""
        compared = [_Parity(comparison) for comparison in run.parity.comparisons]
        rows = [row for each in compared for row in each.rows()]
        return self.made(rows, [note for each in compared for note in each.notes()])


class _Parity:
    """One comparison: its differences with the cases that have them."""

    def __init__(self, comparison: PeerGroup) -> None:
        self._comparison = comparison
        # the reference is often at another world size, which would be in every other name
        reference = comparison.reference
        others = [row.case for row in comparison.cases if row is not reference]
        self._names = {**short_names([reference.case]), **short_names(others)}
        self._reference = one_line(reference.case.name)
        self._cases = gathered(
            (difference, self._names[case_id])
            for case_id, differences in comparison.differences.items()
            for difference in differences
        )

    def rows(self) -> list[Row]:
        """The differences, those that change the work first."""
        order = sorted(self._cases, key=lambda each: (list(_KINDS).index(each.kind), each.key))
        return [self._row(each) for each in order]

    def notes(self) -> list[str]:
        """The verdict in a sentence, and which cases a finding touches."""
        others = len(self._comparison.cases) - 1
        touched = [row for row in self._comparison.cases if self._comparison.findings(row)]
        if touched:
            serious = [each for each in self._cases if each.kind in ("work", "unknown")]
            return [
                f"{len(touched)} of the {others + 1} cases differ from the work of {self._reference}.",
                *(f"{each} ({listed(self._cases[each], _MOST_NAMES)})." for each in serious),
            ]
        if not self._comparison.is_known:
            return [
                f"Not known: none of {others + 1} cases, such as {self._reference}, reported its settings."
            ]
        if not others:
            return [f"{self._reference} has nothing to be compared with."]
        others_did = "The case" if others == 1 else f"All {others} cases"
        return [f"{others_did} compared with {self._reference} did the same work."]

    def _row(self, each: Difference) -> Row:
        names = self._cases[each]
        shown = names[0] if len(names) == 1 else f"{len(names)} of {len(self._comparison.cases)}"
        return Row(
            {
                "setting": each.key,
                "reference_case": self._reference,
                "kind": each.kind,
                "reference": Cell(each.expected, one_line(each.expected or _NOT_REPORTED, _LONGEST)),
                "found": Cell(each.found, one_line(each.found or _NOT_REPORTED, _LONGEST)),
                "cases": Cell(", ".join(names), shown),
            },
            group=f"{_KINDS[each.kind]}, against {self._reference}",
        )
