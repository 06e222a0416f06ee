"""``distbench compare``: runs side by side, case by case."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from distbench.cli.printing import note, say, say_json, width
from distbench.cli.showing import find_run
from distbench.errors import UsageError


def compare_runs(names: Sequence[str], *, html: Path | None, out: Path, as_json: bool) -> int:
    """Print what changed from the first run to each of the others, and write it to *html* if given.

    Raises:
        UsageError: fewer than two runs, no such run, or one that can't be read.
        InfrastructureError: the page can't be written.
    """
    from distbench.report import comparison_view
    from distbench.report.tables import as_text

    if len(names) < 2:
        raise UsageError("compare: with what? distbench compare RUN_A RUN_B: what changed from A to B")
    runs = [find_run(name, out) for name in names]
    before, *others = [comparison_view.Side(run.info(), list(run.records())) for run in runs]
    made = [comparison_view.comparison(before, after) for after in others]
    if html:
        from distbench.report import comparison_page

        comparison_page.write(made, html)
        note(f"comparison: {html}")
    if as_json:
        say_json([comparison_view.to_json(each) for each in made])
    else:
        say("\n\n".join(as_text(comparison_view.table(each), width()) for each in made))
    return 0
