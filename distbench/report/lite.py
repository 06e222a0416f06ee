"""``report-lite.html``: what decides, in one small file without script, for mail and pull requests."""

from __future__ import annotations

from pathlib import Path

from distbench.analysis.case_summary import MEMORY, THROUGHPUT
from distbench.analysis.key_findings import sentences
from distbench.analysis.price import PER_BILLION
from distbench.analysis.recommendation import answer
from distbench.analysis.run import AnalysedRun
from distbench.report import header, html
from distbench.report.case_table import CaseTable, Column, case_table
from distbench.report.scatter_plot import plane
from distbench.system.files import write_whole, writing

_MOST_SENTENCES = 20
_COLUMNS = (THROUGHPUT, "relative", MEMORY, "mfu", PER_BILLION, "step_s")
"""Numbers that decide, the first ones first."""
_MOST_COLUMNS = 4
"""As many as mail of 600 CSS pixels has room for."""
_MOST_ROWS = 80


def write(folder: Path, run: AnalysedRun) -> Path:
    """Render the small report of *run* into *folder* and return the file.

    Raises:
        InfrastructureError: the file can't be written.
    """
    report = folder / "report-lite.html"
    with writing(report):
        write_whole(report, render(run))
    return report


def render(run: AnalysedRun) -> str:
    """The page as HTML: below 300 KB however many cases there are."""
    table = case_table(run)
    return html.static(
        "lite.html",
        info=run.info,
        title=header.title(run),
        strip=header.facts(run),
        picker={"answer": answer(run)},
        plane=plane(run),
        table=table,
        columns=_columns(table),
        said=sentences(run)[:_MOST_SENTENCES],
        most_rows=_MOST_ROWS,
        notes=run.parity.footnotes.sentences,
    )


def _columns(table: CaseTable) -> list[Column]:
    """The few numbers that there is room for, and the verdicts."""
    known = {column.field.name: column for column in table.columns}
    few = [name for name in _COLUMNS if name in known][:_MOST_COLUMNS]
    return [
        column
        for column in table.columns
        if column.field.name in few or (column.is_verdict and not column.folded)
    ]
