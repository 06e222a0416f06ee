"""``distbench compare``: two runs, case by case."""

from __future__ import annotations

from pathlib import Path

from distbench.cli.printing import note, say, say_json, width
from distbench.cli.showing import find_run


def compare_runs(before: str, after: str, *, html: Path | None, out: Path, as_json: bool) -> int:
    """Print what changed from the run *before* to the run *after*, and write it to *html* if given.

    Raises:
        UsageError: there is no such run, or one that can't be read.
        InfrastructureError: the page can't be written.
    """
    from distbench.report import comparison_view
    from distbench.report.tables import as_text

    runs = [find_run(name, out) for name in (before, after)]
    sides = [comparison_view.Side(run.info(), list(run.records())) for run in runs]
    made = comparison_view.comparison(*sides)
    if html:
        from distbench.report import comparison_page

        comparison_page.write(made, html)
        note(f"comparison: {html}")
    if as_json:
        say_json(comparison_view.to_json(made))
    else:
        say(as_text(comparison_view.table(made), width()))
    return 0
