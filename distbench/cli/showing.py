"""``distbench show`` and ``distbench report``: what a run has left."""

from __future__ import annotations

import dataclasses
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from distbench.cli.printing import say, say_json, width
from distbench.errors import UsageError
from distbench.record import Record, of_kind
from distbench.store import Run, RunInfo


def show_run(name: str, *, out: Path, as_json: bool) -> int:
    """Print the table of a run."""
    run = find_run(name, out)
    info, records = run.info(), list(run.records())
    if as_json:
        say_json(summary_of(info, records))
    else:
        print_table(info, records)
    return 0


def show_markdown(name: str, *, out: Path) -> int:
    """Print a run as Markdown."""
    from distbench.report import markdown

    run = find_run(name, out)
    say(markdown.page(run.info(), list(run.records())))
    return 0


def show_view(name: str, view: str, *, out: Path) -> int:
    """Print one view of a run.

    Raises:
        UsageError: there is no such view.
    """
    from distbench.analysis.parity import footnotes
    from distbench.analysis.summary import summarise
    from distbench.report.tables import as_text
    from distbench.report.terminal import footnote_lines
    from distbench.report.views import JOB_VIEWS, VIEWS

    if view not in (*VIEWS, *JOB_VIEWS):
        raise UsageError(f"--view = {view!r}: allowed: {', '.join((*VIEWS, *JOB_VIEWS))}")
    run = find_run(name, out)
    if view in JOB_VIEWS:
        run.info()
        say(as_text(JOB_VIEWS[view](of_kind(list(run.records()), view)), width()))
        return 0
    cases = summarise(run.info(), list(run.records()))
    shown, notes = as_text(VIEWS[view](cases), width()), footnotes(cases)
    say(shown)
    # not every view marks its cases
    if any(mark in shown for mark in notes.marks.values()):
        say("\n" + "\n".join(footnote_lines(notes, width())))
    return 0


def write_report(name: str, *, png: Path | None, out: Path, open_: bool) -> int:
    """Write the report of a run, and its charts into the folder *png* if given; print the files.

    Raises:
        UsageError: there is no such run, or what draws charts is missing.
        InfrastructureError: a file can't be written.
    """
    run = find_run(name, out)
    run.info()
    from distbench.report import page

    file = page.write(run)
    say(str(file))
    if png:
        from distbench.report import pictures

        for picture in pictures.write(file, png):
            say(str(picture))
    if open_:
        webbrowser.open(file.resolve().as_uri())
    return 0


def print_table(info: RunInfo, records: Sequence[Record]) -> None:
    """Print the table of a run, and below it what it says."""
    from distbench.report import terminal

    say(terminal.table(info, records, width=width()))


def summary_of(info: RunInfo, records: Sequence[Record]) -> dict[str, Any]:
    """Return a run as ``--json`` shows it."""
    from distbench.analysis import checkpoint
    from distbench.analysis.parity import findings
    from distbench.analysis.summary import summarise, to_json

    cases = summarise(info, records)
    shown, unfair = to_json(info, cases), findings(cases)
    for case in shown["cases"]:
        case["parity"] = [dataclasses.asdict(each) for each in unfair.get(case["case_id"], [])]
    if tried := of_kind(records, "checkpoint"):
        shown["checkpoints"] = checkpoint.to_json(tried)
    return shown


def find_run(name: str, out: Path) -> Run:
    """Return the run that *name* means: a folder, or the start of an id or folder name in *out*.

    Raises:
        UsageError: there is none, or more than one.
    """
    folder = Path(name)
    if folder.name == "run.json":
        folder = folder.parent
    if folder.is_dir():
        return Run(folder)
    runs = [file.parent for file in sorted(out.glob("*/run.json"))] if out.is_dir() else []
    found = [run for run in runs if run.name.startswith(name) or run.name.rpartition("-")[2].startswith(name)]
    if len(found) == 1:
        return Run(found[0])
    if found:
        raise UsageError(f"{name}: more than one run: {', '.join(run.name for run in found)}")
    last = ", ".join(run.name for run in runs[-5:])
    raise UsageError(
        f"{name}: no such run in {out}; " + (f"the last ones: {last}" if last else "there is none")
    )
