"""``report-lite.html``: the small report without scripts, for mail and pull requests."""

from __future__ import annotations

from pathlib import Path

from distbench.analysis.case_summary import MEMORY, THROUGHPUT
from distbench.analysis.cost import COST_PER_BILLION_TOKENS
from distbench.analysis.run import RunAnalysis
from distbench.analysis.wording.findings import all_findings
from distbench.analysis.wording.recommendation import recommend
from distbench.report import header, html
from distbench.report.case_table import CaseTable, make_case_table
from distbench.report.page_data import pick_limit
from distbench.report.scatter_plot import scatter_plot
from distbench.system.files import infrastructure_errors, write_atomic
from distbench.views.base import CaseColumn

_MAX_SENTENCES = 20
_COLUMNS = (THROUGHPUT, "relative", MEMORY, "mfu", COST_PER_BILLION_TOKENS, "step_s")
"""Columns for a decision, most important first."""
_MAX_COLUMNS = 4
"""Maximum number of columns that fit into mail of 600 CSS pixels."""
_MAX_ROWS = 80


def write(folder: Path, run: RunAnalysis) -> Path:
    """Render the small report of *run* into *folder* and return the file.

    Raises:
        InfrastructureError: the file can't be written.
    """
    report = folder / "report-lite.html"
    with infrastructure_errors(report):
        write_atomic(report, render(run))
    return report


def render(run: RunAnalysis) -> str:
    """The page as HTML: below 300 KB however many cases there are."""
    table = make_case_table(run)
    return html.render_static(
        "lite.html",
        info=run.info,
        title=header.page_title(run),
        strip=header.header_facts(run),
        picker={"answer": recommend(run), "limit": pick_limit(run)},
        plane=scatter_plot(run),
        table=table,
        columns=_columns(table),
        said=all_findings(run)[:_MAX_SENTENCES],
        most_rows=_MAX_ROWS,
        notes=run.parity.footnotes.sentences,
    )


def _columns(table: CaseTable) -> list[CaseColumn]:
    """The few columns that fit, and the verdicts."""
    known = {column.name: column for column in table.columns}
    few = [name for name in _COLUMNS if name in known][:_MAX_COLUMNS]
    return [
        column
        for column in table.columns
        if column.name in few or (column.type == "varchar" and column.name not in table.folded)
    ]
