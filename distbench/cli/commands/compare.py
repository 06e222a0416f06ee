"""``distbench compare``: compare runs case by case."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from distbench.cli import options
from distbench.cli.decorators import reads_runs
from distbench.cli.options import argument, option
from distbench.cli.output import (
    apply_style,
    print_json,
    print_note,
    print_text,
    print_warning,
    terminal_width,
)
from distbench.core.errors import UsageError

if TYPE_CHECKING:
    from distbench.record.run_folder import Run


def compare(
    context: typer.Context,
    names: Annotated[
        list[str],
        argument("RUN_A RUN_B...", "Run to compare with, then the later ones; a suite is run first."),
    ],
    html: Annotated[
        Path | None, option("--html", "FILE", "Also write a page that opens without a network.")
    ] = None,
    markdown: options.MarkdownOption = False,
    out: options.OutOption = options.DEFAULT_RUNS_FOLDER,
    as_json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> int:
    """Show two or more runs side by side."""
    from distbench.record import catalog

    options.check_exclusive("compare", md=markdown, json=as_json)
    if len(names) < 2:
        raise UsageError("compare needs two runs: distbench compare RUN_A RUN_B")
    first = catalog.find_run(names[0], out)
    later: list[Run] = []
    for name in names[1:]:
        found = _find_or_run(name, out, context.obj, quiet=quiet)
        if isinstance(found, int):
            # a comparison with an incomplete run was not requested
            return found
        later.append(found)
    form = "json" if as_json else "md" if markdown else ""
    return _print_comparison(first, later, {out, first.folder.parent}, html, form)


@reads_runs
def _print_comparison(
    first: Run, later: Sequence[Run], folders: set[Path], html: Path | None, form: str
) -> int:
    """Print *later* runs next to the *first* as *form*; runs in *folders* give the variance between runs."""
    from distbench.api.comparison import StoredRun, compare_stored
    from distbench.api.stored_runs import damage_json
    from distbench.cli.stored_runs import load_run
    from distbench.report import comparison as reported

    before, *others = (StoredRun(run.folder, load_run(run)) for run in (first, *later))
    comparisons = compare_stored(before, others, folders, print_warning)
    if html:
        from distbench.report import comparison_page

        comparison_page.write(comparisons, html)
        print_note(f"comparison: {html}")
    if form == "json":
        print_json(
            [
                {
                    **reported.comparison_json(comparison),
                    "damaged": damage_json(before.analysis, after.analysis),
                }
                for comparison, after in zip(comparisons, others, strict=True)
            ]
        )
    elif form == "md":
        print_text("\n\n".join(map(reported.comparison_markdown, comparisons)))
    else:
        print_text(
            "\n\n".join(
                reported.comparison_text(comparison, terminal_width(), apply_style)
                for comparison in comparisons
            )
        )
    return 0


def _find_or_run(name: str, out: Path, command: Sequence[str], *, quiet: bool) -> Run | int:
    """Find the run that *name* denotes; a suite file is run first.

    Returns the exit code if that run is stopped.
    """
    from distbench.api.progress import observe_progress
    from distbench.cli.interruption import print_stopped, resume_hint_on_abort
    from distbench.record import catalog
    from distbench.record.run_folder import resume_command
    from distbench.run import RunExecution
    from distbench.suite import load_suite

    if Path(name).suffix not in (".yaml", ".yml"):
        return catalog.find_run(name, out)
    execution = RunExecution.create(load_suite(Path(name)), out, command)
    resume = resume_command(execution.run.folder)
    with resume_hint_on_abort(resume), observe_progress(quiet=quiet) as watcher:
        stopped_by = execution.execute(watcher)
    return print_stopped(stopped_by, resume) if stopped_by else execution.run
