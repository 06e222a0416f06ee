"""``report.html``: all that a run has to say, made from its records alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from distbench.analysis.advice import ADVICE
from distbench.analysis.candidates import noises
from distbench.analysis.environment import environment, facts
from distbench.analysis.parity import Footnotes, footnotes
from distbench.analysis.summary import CaseSummary, summarise
from distbench.analysis.text import plain
from distbench.analysis.words import sentences
from distbench.errors import InfrastructureError
from distbench.files import write_whole
from distbench.record import Record, Status, of_kind
from distbench.report import html
from distbench.report.chapters import chapters
from distbench.report.export import document
from distbench.report.picker import picker
from distbench.store import Run, RunInfo
from distbench.units import value_text

_MOST_SENTENCES = 40


def write(run: Run) -> Path:
    """Render the report of *run* into its folder and return the file.

    Raises:
        RecordError: a record is corrupt or of another format.
        InfrastructureError: the file can't be written.
    """
    file = run.folder / "report.html"
    try:
        write_whole(file, render(run.info(), list(run.records())))
    except OSError as error:
        raise InfrastructureError(f"{file}: can't be written: {error.strerror}") from error
    return file


def render(info: RunInfo, records: Sequence[Record]) -> str:
    """Return the page."""
    cases = summarise(info, records)
    # a check trains in deterministic mode, so its surroundings are others
    every = records
    records = of_kind(records, "measure")
    notes = footnotes(cases)
    told = chapters(cases, every)
    columns = {name: column for row in cases for name, column in row.columns.items()}
    offered = picker(cases)
    return html.render(
        "report.html",
        ("picker.js", "report.js", "tables.js"),
        (chart for each in told for chart in each.charts),
        {"picker-data": offered.data, "case-data": document(info, cases, columns)},
        {"cell": _cell},
        info=info,
        cases=cases,
        picker=offered,
        said=sentences(cases)[:_MOST_SENTENCES],
        notes=notes,
        chapters=told,
        columns=columns,
        anchors={name: f"column-{place}" for place, name in enumerate(columns, start=1)},
        values=_values(cases, list(columns), notes),
        failed=_by_status(cases),
        advice=ADVICE,
        statuses=_statuses(cases),
        missing=_missing(cases),
        noises=noises(cases),
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
    found: dict[tuple[str, str], list[str]] = {}
    for row in cases:
        if row.measured:
            told = dict(row.absent)
            if row.relative_absent:
                told["× ddp"] = row.relative_absent
            for column, reason in told.items():
                found.setdefault((column, reason), []).append(row.case.name)
    return [(column, reason, names) for (column, reason), names in found.items()]


def _by_status(cases: Sequence[CaseSummary]) -> dict[str, list[CaseSummary]]:
    """Return the cases of which a trial failed by how it ended."""
    found: dict[str, list[CaseSummary]] = {}
    for row in cases:
        if row.failed and row.status != Status.UNSUPPORTED:
            found.setdefault(row.worst, []).append(row)
    return found


def _statuses(cases: Sequence[CaseSummary]) -> dict[str, int]:
    """Return the words that the table shows as status, with the number of cases that have each."""
    found: dict[str, int] = {}
    for row in cases:
        word = "differs" if row.differs else row.status
        found[word] = found.get(word, 0) + 1
    return found


def _values(cases: Sequence[CaseSummary], names: list[str], notes: Footnotes) -> list[list[str]]:
    """Return the rows of the table of all values, the name of the case first."""
    return [
        [row.case.name, notes.marks.get(row.case.id, ""), *(_cell(row, name) for name in names)]
        for row in cases
        if row.measured
    ]
