"""``report.html``: all that a run has to say, made from its records alone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from distbench.analysis.headlines import ADVICE, sentences
from distbench.analysis.parity import Footnotes
from distbench.analysis.run import AnalysedRun
from distbench.analysis.settings import environment, facts
from distbench.analysis.summary import CaseSummary
from distbench.analysis.text import plain
from distbench.files import write_whole, writing
from distbench.grouping import gathered, grouped
from distbench.record import Status
from distbench.report import html
from distbench.report.page_data import document, picker
from distbench.report.view import chapters
from distbench.units import value_text

_MOST_SENTENCES = 40


def write(folder: Path, run: AnalysedRun) -> Path:
    """Render the report of *run* into *folder* and return the file.

    Raises:
        InfrastructureError: the file can't be written.
    """
    file = folder / "report.html"
    with writing(file):
        write_whole(file, render(run))
    return file


def render(run: AnalysedRun) -> str:
    """The page as HTML."""
    info, cases, notes = run.info, run.cases, run.parity.footnotes
    # a check trains in deterministic mode, so its environment is another one
    records = run.measured
    made = chapters(run)
    columns = {name: column for row in cases for name, column in row.columns.items()}
    offered = picker(run)
    return html.render(
        "report.html",
        ("picker.js", "report.js", "tables.js"),
        (chart for each in made for chart in each.charts),
        {"picker-data": offered.data, "case-data": document(info, cases, columns)},
        {"cell": _cell},
        info=info,
        cases=cases,
        picker=offered,
        said=sentences(run)[:_MOST_SENTENCES],
        notes=notes,
        chapters=made,
        columns=columns,
        anchors={name: f"column-{place}" for place, name in enumerate(columns, start=1)},
        values=_values(cases, list(columns), notes),
        failed=_by_status(cases),
        advice=ADVICE,
        statuses=_statuses(cases),
        missing=_missing(cases),
        noises=run.noises,
        worker=facts(next((record.environment for record in records if record.environment), {})),
        others={key: found for key, found in environment(records, {}).items() if len(found) > 1},
        machine=facts(info.machine),
        suite=json.dumps(info.suite, indent=2, ensure_ascii=False),
    )


def _cell(row: CaseSummary, name: str, unit: bool = True) -> str:
    estimate = row.values.get(name)
    if estimate is None:
        return "–"
    # what stands over a column need not stand in each of its cells
    text = value_text(estimate.value, plain(str(row.columns[name]["unit"])) if unit else "")
    return text if estimate.spread is None else f"{text} ±{estimate.spread:.1%}"


def _missing(cases: Sequence[CaseSummary]) -> list[tuple[str, str, list[str]]]:
    """Return (column, why it has no number, the cases that this is so for)."""
    found = gathered(
        (known, row.case.name)
        for row in cases
        if row.measured
        for known in {**row.absent, **({"× ddp": row.relative_absent} if row.relative_absent else {})}.items()
    )
    return [(column, reason, names) for (column, reason), names in found.items()]


def _by_status(cases: Sequence[CaseSummary]) -> dict[str, list[CaseSummary]]:
    """The cases of which a trial failed by how it ended."""
    failed = [row for row in cases if row.failed and row.status != Status.UNSUPPORTED]
    return grouped(failed, lambda row: row.worst)


def _statuses(cases: Sequence[CaseSummary]) -> dict[str, int]:
    """The words that the table shows as status, with the number of cases that have each."""
    return dict(Counter("differs" if row.differs else row.status for row in cases))


def _values(cases: Sequence[CaseSummary], names: list[str], notes: Footnotes) -> list[list[str]]:
    """The rows of the table of all values, the name of the case first."""
    return [
        [row.case.name, notes.marks.get(row.case.id, ""), *(_cell(row, name) for name in names)]
        for row in cases
        if row.measured
    ]
