"""``distbench compare``: runs next to each other, case by case."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from distbench.analysis.history import past
from distbench.analysis.run import AnalysedRun
from distbench.analysis.statistics.between_run_variance import Past
from distbench.cli import options
from distbench.cli.colour import paint
from distbench.cli.copies import once
from distbench.cli.history_inputs import readable
from distbench.cli.interruption import ended, resumable
from distbench.cli.options import argument, option
from distbench.cli.output import note, say, say_json, width
from distbench.cli.progress import observer
from distbench.cli.readers import reads_runs
from distbench.cli.reading import analysed, damage_json
from distbench.core.errors import UsageError
from distbench.core.text import one_line
from distbench.record import catalog
from distbench.record.run_folder import Run, resume_command
from distbench.report import comparison_view
from distbench.run import Execution
from distbench.suite import load

_MOST_RUNS = 30
"""So many other runs tell how much runs differ, and are read in a few seconds."""


def compare(
    context: typer.Context,
    names: Annotated[
        list[str],
        argument("RUN_A RUN_B...", "Run to compare with, then the later ones; a suite is run first."),
    ],
    html: Annotated[
        Path | None, option("--html", "FILE", "Also write a page that opens without a network.")
    ] = None,
    markdown: options.Markdown = False,
    out: options.Out = options.REPORTS,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> int:
    """Show two or more runs side by side."""
    options.check_forms("compare", md=markdown, json=as_json)
    if len(names) < 2:
        raise UsageError("compare needs two runs: distbench compare RUN_A RUN_B")
    first = catalog.find(names[0], out)
    later: list[Run] = []
    for name in names[1:]:
        found = _found_or_run(name, out, context.obj, quiet=quiet)
        if isinstance(found, int):
            # half a run is not what was to be compared
            return found
        later.append(found)
    form = "json" if as_json else "md" if markdown else ""
    return _side_by_side(first, later, {out, first.folder.parent}, html, form)


@reads_runs
def _side_by_side(first: Run, later: Sequence[Run], folders: set[Path], html: Path | None, form: str) -> int:
    """Print *later* runs next to the *first* as *form*; other runs in *folders* tell how much runs differ."""
    before, *others = map(analysed, (first, *later))
    for run, after in zip(later, others, strict=True):
        if run.folder.resolve() == first.folder.resolve():
            note(f"distbench: warning: {first.folder} is compared with itself: nothing can differ")
        elif before.info.run_id == after.info.run_id:
            text = f"{first.folder} and {run.folder} are copies of one run, {one_line(after.info.run_id, 60)}"
            note(f"distbench: warning: {text}: the trials in both are compared with themselves")
    earlier = _past([before, *others], folders)
    comparisons = [
        replace(
            comparison_view.comparison(before, after, earlier),
            is_same=run.folder.resolve() == first.folder.resolve(),
        )
        for run, after in zip(later, others, strict=True)
    ]
    if html:
        from distbench.report import comparison_page

        comparison_page.write(comparisons, html)
        note(f"comparison: {html}")
    if form == "json":
        say_json(
            [
                {**comparison_view.to_json(comparison), "damaged": damage_json(before, after)}
                for comparison, after in zip(comparisons, others, strict=True)
            ]
        )
    elif form == "md":
        say("\n\n".join(map(comparison_view.markdown, comparisons)))
    else:
        say("\n\n".join(comparison_view.text(comparison, width(), paint) for comparison in comparisons))
    return 0


def _past(compared: Sequence[AnalysedRun], folders: Iterable[Path]) -> Past:
    """How much the latest other runs in *folders* differ, of the cases that are *compared*."""
    known, ids = {each.info.run_id for each in compared}, {row.case.id for row in compared[0].cases}
    stored = {run.folder.resolve(): run for folder in folders for run in catalog.inside(folder)}
    # names begin with the suite's, so the latest are those that were written last
    latest = sorted(stored.values(), key=lambda run: run.folder.stat().st_mtime)[-_MOST_RUNS:]
    different, _ = once(latest)
    return past((each for each in readable(different) if each.run_id not in known), ids)


def _found_or_run(name: str, out: Path, command: Sequence[str], *, quiet: bool) -> Run | int:
    """Run that *name* stands for; a suite file is run first. The exit code, if that is stopped."""
    if Path(name).suffix not in (".yaml", ".yml"):
        return catalog.find(name, out)
    execution = Execution.start(load(Path(name)), out, command)
    resume = resume_command(execution.run.folder)
    with resumable(resume), observer(quiet=quiet) as watcher:
        stopped_by = execution.execute(watcher)
    return ended(stopped_by, resume) if stopped_by else execution.run
