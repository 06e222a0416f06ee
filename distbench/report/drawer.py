"""All about one case, for the drawer that its row opens: settings, numbers, the log's end, what to paste."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from distbench.adopt import FORMATS, adopt
from distbench.adopt.caveats import caveats
from distbench.analysis.case_summary import CaseSummary
from distbench.analysis.parity import PeerGroup
from distbench.analysis.run import AnalysedRun
from distbench.analysis.settings import settings, text
from distbench.core.errors import DistbenchError
from distbench.core.grouping import grouped
from distbench.core.text import one_line, plain
from distbench.core.units import bytes_text
from distbench.record.reading import damage_text
from distbench.record.untrusted import untrusted_records
from distbench.report.view import Chapter
from distbench.tables.table import Field, Row, Sheet

_MOST_ROWS = 64
_LONGEST_LOG = 8000
_LONGEST_CELL = 300


def drawers(run: AnalysedRun, chapters: Sequence[Chapter]) -> dict[str, Any]:
    """What the script shows of each case by its id; the headings of tables stand once for all cases."""
    sheets = [(chapter, chapter.behind) for chapter in chapters if chapter.behind]
    tables = [(chapter, sheet) for chapter, sheet in sheets if any(f.name == "case_id" for f in sheet.fields)]
    rows = [_rows(sheet) for _, sheet in tables]
    damage = _lines([damage_text(run.damaged)] if run.damaged else [])
    groups = {row.case.id: group for group in run.parity.comparisons for row in group.cases}
    return {
        "tables": [
            {
                "id": chapter.id,
                "title": chapter.title,
                "headings": list(sheet.headings[1:]),
                "caption": plain(sheet.caption),
            }
            for chapter, sheet in tables
        ],
        "cases": {
            row.case.id: {
                **_facts(row),
                **_settings(row, groups.get(row.case.id)),
                "rows": [of.get(row.case.id, [])[:_MOST_ROWS] for of in rows],
                "left": [max(0, len(of.get(row.case.id, [])) - _MOST_ROWS) for of in rows],
                "caveats": [*_lines(caveats(row, run)), *damage] if row.measured else [],
                "adopt": [_adopted(format_, row) for format_ in FORMATS],
            }
            for row in run.cases
        },
    }


def _rows(sheet: Sheet) -> dict[str, list[list[str]]]:
    """The texts of *sheet* by case id, without the first column, which has the case's name."""
    by_case = grouped(sheet.rows, lambda row: str(row.value("case_id")))
    shown = sheet.shown[1:]
    return {
        case_id: [[_number(field, row) for field in shown] for row in rows]
        for case_id, rows in by_case.items()
    }


def _number(field: Field, row: Row) -> str:
    """The text of a cell; of bytes with their unit, which a table may say above it for all."""
    value = row.value(field.name)
    if field.unit == "B" and isinstance(value, int | float):
        return bytes_text(value)
    return _cell(field.text(row.cells.get(field.name)))


def _cell(shown: str) -> str:
    return one_line(shown, _LONGEST_CELL)


def _facts(row: CaseSummary) -> dict[str, Any]:
    failure = row.failure
    log = [failure.traceback, failure.log] if failure else []
    return {
        "name": one_line(row.case.name),
        "status": "differs" if row.differs else row.status,
        "reason": one_line(row.reason),
        "noisy": one_line(row.degraded),
        "verdicts": [f"{kind}: {one_line(verdict.sentence)}" for kind, verdict in row.verdicts.items()],
        "logs": [plain(each)[-_LONGEST_LOG:] for each in log if each],
        "file": one_line(row.log),
    }


def _settings(row: CaseSummary, group: PeerGroup | None) -> dict[str, Any]:
    """Settings of the live engine; those that its reference has not, with the reference's, first."""
    if row.detail is None or group is None:
        return {"reference": "", "differences": [], "settings": []}
    own = [each for each in group.differences.get(row.case.id, ()) if each.between == "cases"]
    apart = {each.key for each in own}
    return {
        "reference": "" if row is group.reference else one_line(group.reference.case.name),
        "differences": [
            [each.key, *(_cell(side or "not reported") for side in (each.found, each.expected)), each.kind]
            for each in own
        ],
        "settings": [
            [key, _cell(text(value))] for key, value in settings(row.detail).items() if key not in apart
        ],
    }


def _adopted(format_: str, row: CaseSummary) -> dict[str, Any]:
    """The case in a format of ``distbench adopt``, or why it can't be had."""
    if row.detail is None:
        return {"format": format_, "problem": "there is nothing to export: the case was not measured"}
    if row.differs:
        return {"format": format_, "problem": "not equivalent to its reference (distbench adopt --force)"}
    try:
        with untrusted_records(f"the settings of {one_line(row.case.name, 100)}"):
            found = adopt(format_, row.case, row.detail.effective, nodes=len(row.detail.nodes) or 1)
    except DistbenchError as error:
        return {"format": format_, "problem": one_line(str(error)).removeprefix(f"--as {format_}: ")}
    return {
        "format": format_,
        "launch": plain(found.launch),
        "files": {one_line(name): plain(content) for name, content in found.files.items()},
        "notes": [*_lines(found.notes), *(f"Differs: {line}" for line in _lines(found.differs))],
    }


def _lines(texts: Iterable[str]) -> list[str]:
    return [one_line(each, 2000) for each in texts]
