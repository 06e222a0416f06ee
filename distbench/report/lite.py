"""``report-lite.html``: what decides, in one small file without script, for mail and pull requests."""

from __future__ import annotations

from pathlib import Path

from distbench.analysis.answer import answer
from distbench.analysis.headlines import sentences
from distbench.analysis.run import AnalysedRun
from distbench.files import write_whole, writing
from distbench.report import html, identity
from distbench.report.case_table import case_table
from distbench.report.plane import plane

_MOST_SENTENCES = 20
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
    return html.static(
        "lite.html",
        info=run.info,
        title=identity.title(run),
        strip=identity.facts(run),
        picker={"answer": answer(run)},
        plane=plane(run),
        table=case_table(run),
        said=sentences(run)[:_MOST_SENTENCES],
        most_rows=_MOST_ROWS,
        notes=run.parity.footnotes.sentences,
    )
