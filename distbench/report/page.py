"""``report.html``: the full report of a run, made from its records alone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from distbench.analysis.case_summary import REFERENCE_LABEL, CaseSummary
from distbench.analysis.run import RunAnalysis
from distbench.analysis.settings import flatten_facts, merge_environments
from distbench.analysis.wording.failure_sentences import FAILURE_ADVICE
from distbench.analysis.wording.findings import all_findings
from distbench.core.grouping import group_by, group_pairs
from distbench.core.text import strip_control_characters
from distbench.core.units import MISSING_TEXT, format_value
from distbench.record import Status
from distbench.report import header, html
from distbench.report.case_table import make_case_table
from distbench.report.drawer import case_details
from distbench.report.html import Chapter
from distbench.report.page_data import case_data, picker_data
from distbench.report.recommendation import StoredRecommendation
from distbench.report.scatter_plot import scatter_plot
from distbench.system.files import infrastructure_errors, write_atomic
from distbench.views.base import View, all_views, estimate_text
from distbench.views.charts.figures import Chart

_MAX_SENTENCES = 40
_DEFINED = ("relative", "exposed", "headroom", "trials")
"""Columns of the table of all cases that the page defines, as no record describes them."""


def page_file(folder: Path) -> Path:
    """Path of the report of the run in *folder*, which may not exist yet."""
    return folder / "report.html"


def write(folder: Path, run: RunAnalysis) -> Path:
    """Render the report of *run* into *folder*, store its recommendation there, and return the page.

    Raises:
        InfrastructureError: the file can't be written.
    """
    report = page_file(folder)
    with infrastructure_errors(report):
        write_atomic(report, render(run))
    StoredRecommendation.of(run).write(folder)
    return report


def render(run: RunAnalysis) -> str:
    """The page as HTML."""
    cases = run.cases
    # a check trains in deterministic mode, so its environment differs
    records = run.timed_records
    columns = {name: column for row in cases for name, column in row.columns.items()}
    failed = [row for row in cases if row.failed and row.status != Status.UNSUPPORTED]
    offered, made = picker_data(run), chapters(run)
    return html.render(
        "report.html",
        made,
        scripts=(*(["picker.js"] if run.info.has_choice else []), "cases.js", "drawer.js"),
        packed={
            "drawer-data": case_details(run, made),
            "case-data": case_data(run.info, cases, columns),
        },
        blocks={"picker-data": offered["data"]} if run.info.has_choice else {},
        info=run.info,
        title=header.page_title(run),
        strip=header.header_facts(run),
        plane=scatter_plot(run) if run.info.has_choice else None,
        cases=cases,
        table=make_case_table(run),
        relative_to=REFERENCE_LABEL,
        definitions={name: f"define-{name}" for name in _DEFINED},
        picker=offered,
        said=all_findings(run)[:_MAX_SENTENCES],
        notes=run.parity.footnotes,
        columns=columns,
        anchors={name: f"column-{place}" for place, name in enumerate(columns, start=1)},
        values=_values(run, columns),
        failed=group_by(failed, lambda row: row.failure_status),
        advice=FAILURE_ADVICE,
        statuses=Counter(row.outcome for row in cases),
        missing=_missing(cases),
        noises=run.noise_by_device_count,
        worker=flatten_facts(next((record.environment for record in records if record.environment), {})),
        others={key: values for key, values in merge_environments(records, {}).items() if len(values) > 1},
        machine=flatten_facts(run.info.machine),
        suite=json.dumps(run.info.suite, indent=2, ensure_ascii=False),
    )


def _cell(row: CaseSummary, name: str) -> str:
    unit = strip_control_characters(str(row.columns[name]["unit"])) if name in row.columns else ""
    return (
        estimate_text(row, name, lambda value, half: format_value(value, unit, half), digits=1)
        or MISSING_TEXT
    )


def _missing(cases: Sequence[CaseSummary]) -> list[tuple[str, str, list[str]]]:
    """(Column, reason why it has no number, affected cases)."""
    reasons = group_pairs(
        (known, row.case.name)
        for row in cases
        if row.measured
        for known in {
            **row.absence_reasons,
            **({"× ddp": row.relative_absence} if row.relative_absence else {}),
        }.items()
    )
    return [(column, reason, names) for (column, reason), names in reasons.items()]


def _values(run: RunAnalysis, columns: Iterable[str]) -> list[list[str]]:
    """Rows of the table of all values, starting with the name of the case and its mark."""
    marks = run.parity.footnotes.marks
    return [
        [row.case.name, marks.get(row.case.id, ""), *(_cell(row, name) for name in columns)]
        for row in run.cases
        if row.measured
    ]


def chapters(run: RunAnalysis) -> list[Chapter]:
    """Chapters with content for *run*."""
    made = [_chapter(run, name, view) for name, view in all_views().items()]
    return [chapter for chapter in made if chapter]


def charts(run: RunAnalysis) -> dict[str, Chart]:
    """Charts of the report by their ids, in its order."""
    return {chart.id: chart for chapter in chapters(run) for chart in chapter.charts}


def _chapter(run: RunAnalysis, name: str, view: View) -> Chapter | None:
    """Chapter of *view*; None if it has nothing to show. Nothing that warns is collapsed."""
    if view.compares_cases and not run.info.has_choice:
        return None
    charts, table = [*view.charts(run)], view.table(run)
    if not (charts or table.rows or view.is_requested(run)):
        return None
    warns = view.has_warning(run)
    return Chapter(
        name,
        view.title,
        charts,
        None if view.table_in_charts and charts else table,
        table_collapsed=view.table_collapsed and bool(charts) and not warns,
        data_table=table,
        template=view.template,
        content=view.content(run),
        collapsed=view.collapsed and not warns,
        summary=view.summary(run, table) or " ".join(chart.finding for chart in charts if chart.finding),
        has_warning=warns,
        prints_table=view.prints_table,
    )
