"""``distbench compare``: runs side by side, case by case."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from distbench.cli.printing import note, say, say_json, width
from distbench.cli.showing import find_run
from distbench.errors import UsageError
from distbench.store import Run


def compare_runs(
    names: Sequence[str], *, html: Path | None, out: Path, markdown: bool, as_json: bool, quiet: bool
) -> int:
    """Print what changed from the first run to each of the others, and write it to *html* if given.

    A suite's file among the others is run first.

    Raises:
        UsageError: fewer than two runs, no such run, or one that can't be read.
        SuiteError: a suite that is wrong.
        InfrastructureError: the page can't be written, or the disk is full.
    """
    from distbench.report import comparison_markdown, comparison_view

    if as_json and markdown:
        raise UsageError("compare: one of --md and --json at a time")
    if len(names) < 2:
        raise UsageError("compare: with what? distbench compare RUN_A RUN_B: what changed from A to B")
    runs = [find_run(names[0], out), *(_run_of(name, out, quiet=quiet) for name in names[1:])]
    before, *others = [comparison_view.Side(run.info(), list(run.records())) for run in runs]
    made = [comparison_view.comparison(before, after) for after in others]
    if html:
        from distbench.report import comparison_page

        comparison_page.write(made, html)
        note(f"comparison: {html}")
    if as_json:
        say_json([comparison_view.to_json(each) for each in made])
    elif markdown:
        say("\n\n".join(comparison_markdown.page(each) for each in made))
    else:
        say("\n\n".join(comparison_view.text(each, width()) for each in made))
    return 0


def _run_of(name: str, out: Path, *, quiet: bool) -> Run:
    """Return the run that *name* names; if it is the file of a suite, run that."""
    if Path(name).suffix not in (".yaml", ".yml"):
        return find_run(name, out)
    from distbench import spec
    from distbench.cli.running import run_quietly

    return run_quietly(spec.load(Path(name)), out, quiet=quiet)
