"""``report.html``: all that a run has to say, made from its records alone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from distbench.analysis.case_summary import REFERENCE, CaseSummary
from distbench.analysis.key_findings import ADVICE, sentences
from distbench.analysis.run import AnalysedRun
from distbench.analysis.settings import environment, facts
from distbench.core.grouping import gathered, grouped
from distbench.core.text import plain
from distbench.core.units import ABSENT, value_text
from distbench.record import Status
from distbench.report import header, html
from distbench.report.case_table import case_table
from distbench.report.drawer import drawers
from distbench.report.overview import spread_text
from distbench.report.page_data import document, picker
from distbench.report.scatter_plot import plane
from distbench.report.stored_recommendation import StoredAnswer
from distbench.report.view import chapters
from distbench.system.files import write_whole, writing

_MOST_SENTENCES = 40
_DEFINED = ("relative", "exposed", "headroom", "trials")
"""Columns of the table of all cases that the page defines, as no record describes them."""


def file(folder: Path) -> Path:
    """Report of the run in *folder*, which may not be written yet."""
    return folder / "report.html"


def write(folder: Path, run: AnalysedRun) -> Path:
    """Render the report of *run* into *folder*, store its recommendation there, and return the page.

    Raises:
        InfrastructureError: the file can't be written.
    """
    report = file(folder)
    with writing(report):
        write_whole(report, render(run))
    StoredAnswer.of(run).write(folder)
    return report


def render(run: AnalysedRun) -> str:
    """The page as HTML."""
    cases = run.cases
    # a check trains in deterministic mode, so its environment is another one
    records = run.measured
    columns = {name: column for row in cases for name, column in row.columns.items()}
    failed = [row for row in cases if row.failed and row.status != Status.UNSUPPORTED]
    offered, made = picker(run), chapters(run)
    return html.render(
        "report.html",
        made,
        scripts=("picker.js", "cases.js", "drawer.js"),
        packed={"drawer-data": drawers(run, made)},
        blocks={"picker-data": offered["data"], "case-data": document(run.info, cases, columns)},
        cell=_cell,
        info=run.info,
        title=header.title(run),
        strip=header.facts(run),
        plane=plane(run),
        cases=cases,
        table=case_table(run),
        relative_to=REFERENCE,
        definitions={name: f"define-{name}" for name in _DEFINED},
        picker=offered,
        said=sentences(run)[:_MOST_SENTENCES],
        notes=run.parity.footnotes,
        columns=columns,
        anchors={name: f"column-{place}" for place, name in enumerate(columns, start=1)},
        values=_values(run, columns),
        failed=grouped(failed, lambda row: row.worst),
        advice=ADVICE,
        statuses=Counter("differs" if row.differs else row.status for row in cases),
        missing=_missing(cases),
        noises=run.noises,
        worker=facts(next((record.environment for record in records if record.environment), {})),
        others={key: values for key, values in environment(records, {}).items() if len(values) > 1},
        machine=facts(run.info.machine),
        suite=json.dumps(run.info.suite, indent=2, ensure_ascii=False),
    )


def _cell(row: CaseSummary, name: str, unit: bool = True) -> str:
    # what stands over a column need not stand in each of its cells
    shown = plain(str(row.columns[name]["unit"])) if unit and name in row.columns else ""
    return spread_text(row, name, lambda value, half: value_text(value, shown, half), digits=1) or ABSENT


def _missing(cases: Sequence[CaseSummary]) -> list[tuple[str, str, list[str]]]:
    """(Column, why it has no number, the cases that this is so for)."""
    reasons = gathered(
        (known, row.case.name)
        for row in cases
        if row.measured
        for known in {**row.absent, **({"× ddp": row.relative_absent} if row.relative_absent else {})}.items()
    )
    return [(column, reason, names) for (column, reason), names in reasons.items()]


def _values(run: AnalysedRun, columns: Iterable[str]) -> list[list[str]]:
    """The rows of the table of all values, the name of the case and its mark first."""
    marks = run.parity.footnotes.marks
    return [
        [row.case.name, marks.get(row.case.id, ""), *(_cell(row, name) for name in columns)]
        for row in run.cases
        if row.measured
    ]
