"""``distbench show``: the results of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from distbench.cli.options import REPORTS, Csv, Json, Markdown, Out, RunName
from distbench.cli.output import say, say_json, width
from distbench.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from distbench.analysis.run import AnalysedRun


def show(
    name: RunName,
    out: Out = REPORTS,
    view: Annotated[
        str, typer.Option("--view", metavar="VIEW", help="Show one view in detail.", show_default=False)
    ] = "",
    markdown: Markdown = False,
    csv: Csv = False,
    as_json: Json = False,
) -> int:
    """Show a run's results."""
    from distbench.analysis.run import AnalysedRun
    from distbench.record import runs
    from distbench.report.raw_view import raw_tables
    from distbench.report.view import views

    forms = {"--md": markdown, "--csv": csv, "--json": as_json}
    if sum(forms.values()) > 1:
        raise UsageError("show: use only one of --md, --csv and --json")
    run = AnalysedRun.read(runs.find(name, out))
    if view and view not in (known := [*views(), *raw_tables(run)]):
        raise UsageError(f"--view = {view!r}: {did_you_mean(view, known)}")
    form = next((name for name, chosen in forms.items() if chosen), "")
    if view:
        print_view(run, view, form)
    else:
        print_run(run, form)
    return 0


def print_run(run: AnalysedRun, form: str) -> None:
    """Print a run as *form*, a flag of ``show``; empty for text."""
    from distbench.report import markdown, overview
    from distbench.report.run_json import run_json

    if form == "--json":
        say_json(run_json(run))
    elif form == "--md":
        say(markdown.page(run))
    elif form == "--csv":
        say(overview.sheet(run).as_csv())
    else:
        print_table(run)


def print_view(run: AnalysedRun, view: str, form: str = "") -> None:
    """Print one view of a run as *form*, a flag of ``show``; as text with the footnotes of marked cases."""
    from distbench.report.markdown import of_view
    from distbench.report.raw_view import raw_sheet
    from distbench.report.terminal import footnote_lines
    from distbench.report.view import views

    known, notes = views(), run.parity.footnotes
    sheet = known[view].sheet(run) if view in known else raw_sheet(run, view)
    if form == "--json":
        say_json({"run_id": run.info.run_id, "view": view, **sheet.to_json()})
        return
    if form:
        say(of_view(sheet) if form == "--md" else sheet.as_csv())
        return
    text = sheet.as_text(width())
    say(text)
    # not every view marks its cases
    if any(mark in text for mark in notes.marks.values()):
        say("\n" + "\n".join(footnote_lines(notes, width())))


def print_table(run: AnalysedRun) -> None:
    """Print the table of a run and its key findings."""
    from distbench.report import terminal

    say(terminal.table(run, width=width()))
