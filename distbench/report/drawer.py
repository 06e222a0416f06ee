"""Details of each case for the side panel: settings, numbers, end of the log, export."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from distbench.adopt import FORMATS, export_case, export_caveats
from distbench.analysis.case_summary import CaseSummary
from distbench.analysis.parity import PeerGroup
from distbench.analysis.run import RunAnalysis
from distbench.analysis.settings import effective_settings, setting_text
from distbench.core.errors import DistbenchError
from distbench.core.grouping import group_by
from distbench.core.text import one_line, strip_control_characters
from distbench.core.units import format_bytes
from distbench.record.record_reader import damage_summary, untrusted_records
from distbench.report.html import Chapter
from distbench.tables.table import Field, Table, TableRow
from distbench.views.charts.figures import speed_order

_MAX_ROWS = 64
_MAX_LOG_LENGTH = 8000
_MAX_CELL_LENGTH = 300
_MAX_EXPORTED_CASES = 100
"""Number of cases, the fastest ones, whose configurations the page has: writing one takes as long as the rest
of its details.
"""


def case_details(run: RunAnalysis, chapters: Sequence[Chapter]) -> dict[str, Any]:
    """Data of each case by id for the page's script; headings of tables are stored once for all cases."""
    sheets = [(chapter, chapter.data_table) for chapter in chapters if chapter.data_table]
    tables = [(chapter, table) for chapter, table in sheets if any(f.name == "case_id" for f in table.fields)]
    rows = [_rows(table) for _, table in tables]
    damage = _lines([damage_summary(run.damaged)] if run.damaged else [])
    groups = {row.case.id: group for group in run.parity.groups for row in group.cases}
    exported = _fastest(run.cases)
    return {
        "tables": [
            {
                "id": chapter.id,
                "title": chapter.title,
                "headings": list(table.headings[1:]),
                "caption": strip_control_characters(table.caption),
            }
            for chapter, table in tables
        ],
        "cases": {
            row.case.id: {
                **_facts(row),
                **_settings(row, groups.get(row.case.id)),
                "rows": [of.get(row.case.id, [])[:_MAX_ROWS] for of in rows],
                "left": [max(0, len(of.get(row.case.id, [])) - _MAX_ROWS) for of in rows],
                "caveats": [*_lines(export_caveats(row, run)), *damage] if row.measured else [],
                "adopt": [
                    _exported(format_, row) if row.case.id in exported else _left_out(format_, row)
                    for format_ in FORMATS
                ],
            }
            for row in run.cases
        },
    }


def _fastest(rows: Sequence[CaseSummary]) -> set[str]:
    """IDs of the cases whose configurations the page has."""
    return {row.case.id for row in sorted(rows, key=speed_order)[:_MAX_EXPORTED_CASES]}


def _left_out(format_: str, row: CaseSummary) -> dict[str, Any]:
    problem = f"write it with: distbench adopt RUN {row.case.id} --as {format_}"
    return {"format": format_, "problem": problem}


def _rows(sheet: Table) -> dict[str, list[list[str]]]:
    """Texts of *sheet* by case id, without the first column, which has the case's name."""
    by_case = group_by(sheet.rows, lambda row: str(row.value("case_id")))
    shown = sheet.shown[1:]
    return {
        case_id: [[_number(field, row) for field in shown] for row in rows]
        for case_id, rows in by_case.items()
    }


def _number(field: Field, row: TableRow) -> str:
    """Text of a cell; bytes get their unit, which a table may state once for all rows."""
    value = row.value(field.name)
    if field.unit == "B" and isinstance(value, int | float):
        return format_bytes(value)
    return _cell(field.text(row.cells.get(field.name)))


def _cell(shown: str) -> str:
    return one_line(shown, _MAX_CELL_LENGTH)


def _facts(row: CaseSummary) -> dict[str, Any]:
    failure = row.failure
    log = [failure.traceback, failure.log] if failure else []
    return {
        "name": one_line(row.case.name),
        "status": row.outcome,
        "reason": one_line(row.reason),
        "noisy": one_line(row.degraded),
        "verdicts": [f"{kind}: {one_line(verdict.sentence)}" for kind, verdict in row.verdicts.items()],
        "logs": [strip_control_characters(each)[-_MAX_LOG_LENGTH:] for each in log if each],
        "file": one_line(row.log),
    }


def _settings(row: CaseSummary, group: PeerGroup | None) -> dict[str, Any]:
    """Settings of the live engine; differences from the reference come first, with the reference's values."""
    if row.representative_trial is None or group is None:
        return {"reference": "", "differences": [], "settings": []}
    own = [each for each in group.differences.get(row.case.id, ()) if each.between == "cases"]
    own_keys = {each.key for each in own}
    return {
        "reference": "" if row is group.reference else one_line(group.reference.case.name),
        "differences": [
            [each.key, *(_cell(side or "not reported") for side in (each.found, each.expected)), each.kind]
            for each in own
        ],
        "settings": [
            [key, _cell(setting_text(value))]
            for key, value in effective_settings(row.representative_trial).items()
            if key not in own_keys
        ],
    }


def _exported(format_: str, row: CaseSummary) -> dict[str, Any]:
    """The case in a format of ``distbench adopt``, or the reason why it can't be exported."""
    if row.representative_trial is None:
        return {"format": format_, "problem": "there is nothing to export: the case was not measured"}
    if row.differs:
        return {"format": format_, "problem": "not equivalent to its reference (distbench adopt --force)"}
    try:
        with untrusted_records(f"the settings of {one_line(row.case.name, 100)}"):
            found = export_case(
                format_,
                row.case,
                row.representative_trial.effective,
                nodes=len(row.representative_trial.nodes) or 1,
            )
    except DistbenchError as error:
        return {"format": format_, "problem": one_line(str(error)).removeprefix(f"--as {format_}: ")}
    return {
        "format": format_,
        "launch": strip_control_characters(found.launch),
        "files": {one_line(name): strip_control_characters(content) for name, content in found.files.items()},
        "notes": [*_lines(found.notes), *(f"Differs: {line}" for line in _lines(found.differences))],
    }


def _lines(texts: Iterable[str]) -> list[str]:
    return [one_line(each, 2000) for each in texts]
