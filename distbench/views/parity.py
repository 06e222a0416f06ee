"""The view ``parity``: whether the cases of a comparison did the same work, differences first."""

from __future__ import annotations

from collections.abc import Iterator

from distbench.analysis.case_names import short_names
from distbench.analysis.parity import PeerGroup, SettingDifference
from distbench.analysis.run import RunAnalysis
from distbench.core.grouping import group_pairs
from distbench.core.text import join_limited, one_line
from distbench.record import Record
from distbench.strategies.description import REMARKS
from distbench.tables.table import CellMapping, Field, Table, TableCell, TableRow
from distbench.views.base import View

_GROUP_HEADINGS = {
    "work": "Changes the work",
    "unknown": "Unclassified",
    "speed": "Changes the speed, not the work",
    "strategy": "Intended differences",
}
_MAX_NAMES = 20
_MAX_VALUE_LENGTH = 18


class ParityView(View):
    """A row for each difference, those that change the work first."""

    title = "Did every case do the same work?"
    order = 90
    collapsed = True
    caption = (
        "Settings read back from the running engines and processes, compared with the reference of "
        "each comparison (single, else ddp). Each comparison has the cases with the same requested "
        "model, data, precision, optimizer and global batch."
    )
    fields = (
        Field("setting", "setting", "Setting of the live engine or process.", type="varchar"),
        Field("reference_case", "", "Name of the reference of the comparison.", type="varchar"),
        Field("kind", "", "work, unknown, speed or strategy: what the difference changes.", type="varchar"),
        Field("reference", "reference", "Setting of the reference.", type="varchar"),
        Field("found", "found", "Setting of the cases.", type="varchar"),
        Field("cases", "cases", "Names of the cases, separated by commas.", type="varchar"),
    )

    def table(self, run: RunAnalysis) -> Table:
        compared = [(group, _cases_by_difference(group)) for group in run.parity.groups]
        rows = [row for pair in compared for row in _rows(*pair)]
        notes = [note for pair in compared for note in _notes(*pair)]
        return self.make_table(rows, [*notes, *_remarks(run)])

    def summary(self, run: RunAnalysis, table: Table) -> str:
        """Verdict on each comparison."""
        return " ".join(map(_verdict, run.parity.groups))

    def has_warning(self, run: RunAnalysis) -> bool:
        """True if the work of any case differs, or may differ, from that of its reference."""
        return bool(run.parity.findings)


def _cases_by_difference(group: PeerGroup) -> dict[SettingDifference, list[str]]:
    """Names of the cases by their difference."""
    # the reference often has a different world size, which would appear in every other name
    others = [row.case for row in group.cases if row is not group.reference]
    names = {**short_names([group.reference.case]), **short_names(others)}
    return group_pairs(
        (difference, names[case_id])
        for case_id, differences in group.differences.items()
        for difference in differences
    )


def _rows(group: PeerGroup, cases: dict[SettingDifference, list[str]]) -> Iterator[TableRow]:
    reference = one_line(group.reference.case.name)
    settings = [difference for difference in cases if difference.key != REMARKS]
    for difference in sorted(settings, key=lambda each: (list(_GROUP_HEADINGS).index(each.kind), each.key)):
        names = cases[difference]
        shown = names[0] if len(names) == 1 else f"{len(names)} of {len(group.cases)}"
        cells: CellMapping = {
            "setting": difference.key,
            "reference_case": reference,
            "kind": difference.kind,
            "reference": _setting(difference.expected),
            "found": _setting(difference.found),
            "cases": TableCell(", ".join(names), shown),
        }
        yield TableRow(cells, f"{_GROUP_HEADINGS[difference.kind]}, against {reference}")


def _setting(value: str | None) -> TableCell:
    return TableCell(value, one_line(value or "not reported", _MAX_VALUE_LENGTH))


def _remarks(run: RunAnalysis) -> list[str]:
    """Remarks that engines make about themselves, each sentence once."""
    measured = [row for row in run.cases if row.representative_trial is not None]
    names = run.short_names(measured)
    remarks = group_pairs(
        (one_line(str(remark)), names[row.case.id])
        for row in measured
        for remark in _sentences(row.representative_trial)
    )
    return [f"{join_limited(of, _MAX_NAMES)}: {remark}." for remark, of in remarks.items()]


def _sentences(record: Record | None) -> list[object]:
    # a foreign record may hold anything
    remarks = record.effective.get(REMARKS) if record else None
    return remarks if isinstance(remarks, list) else []


def _notes(group: PeerGroup, cases: dict[SettingDifference, list[str]]) -> list[str]:
    """The verdict as a sentence, and the cases that each finding affects."""
    serious = [each for each in cases if each.kind in ("work", "unknown")]
    return [_verdict(group), *(f"{each} ({join_limited(cases[each], _MAX_NAMES)})." for each in serious)]


def _verdict(group: PeerGroup) -> str:
    """Sentence on the work of the cases of *group*."""
    reference, others = one_line(group.reference.case.name), len(group.cases) - 1
    if touched := [row for row in group.cases if group.findings(row)]:
        return f"{len(touched)} of the {others + 1} cases differ from the work of {reference}."
    if not group.is_known:
        return f"Unknown: none of {others + 1} cases, such as {reference}, reported its settings."
    if not others:
        return f"{reference} has nothing to be compared with."
    others_did = "The case" if others == 1 else f"All {others} cases"
    return f"{others_did} compared with {reference} did the same work."
