"""``distbench compare``: runs next to each other, case by case."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from distbench.cli.options import REPORTS, Json, Markdown, Out, Quiet
from distbench.cli.output import note, say, say_json, width
from distbench.errors import UsageError

if TYPE_CHECKING:
    from distbench.record.store import Run


def compare(
    context: typer.Context,
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN_A RUN_B...", help="Run to compare with, then the later ones; a suite is run first."
        ),
    ],
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Also write a page that opens without a network."),
    ] = None,
    markdown: Markdown = False,
    out: Out = REPORTS,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Show two or more runs side by side."""
    from distbench.analysis.run import AnalysedRun
    from distbench.record import runs
    from distbench.report import comparison_view

    if as_json and markdown:
        raise UsageError("compare: use only one of --md and --json")
    if len(names) < 2:
        raise UsageError("compare needs two runs: distbench compare RUN_A RUN_B")
    sides = [
        runs.find(names[0], out),
        *(_found_or_run(name, out, context.obj, quiet=quiet) for name in names[1:]),
    ]
    before, *others = map(AnalysedRun.read, sides)
    comparisons = [comparison_view.comparison(before, after) for after in others]
    if html:
        from distbench.report import comparison_page

        comparison_page.write(comparisons, html)
        note(f"comparison: {html}")
    if as_json:
        say_json([comparison_view.to_json(comparison) for comparison in comparisons])
    elif markdown:
        say("\n\n".join(map(comparison_view.markdown, comparisons)))
    else:
        say("\n\n".join(comparison_view.text(comparison, width()) for comparison in comparisons))
    return 0


def _found_or_run(name: str, out: Path, command: Sequence[str], *, quiet: bool) -> Run:
    """Run that *name* stands for; a suite file is run first."""
    if Path(name).suffix not in (".yaml", ".yml"):
        from distbench.record import runs

        return runs.find(name, out)
    from distbench.cli.progress import observer
    from distbench.run import Execution
    from distbench.suite import load

    execution = Execution.start(load(Path(name)), out, command)
    with observer(quiet=quiet) as watcher:
        execution.execute(watcher)
    return execution.run
