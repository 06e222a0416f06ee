"""``distbench show``: the results of a run."""

from __future__ import annotations

from typing import Annotated

from distbench.analysis.run import AnalysedRun
from distbench.cli.colour import paint
from distbench.cli.options import (
    REPORTS,
    Csv,
    Json,
    Markdown,
    Out,
    Price,
    RunName,
    check_forms,
    check_word,
    option,
)
from distbench.cli.output import note, say, say_json, width
from distbench.cli.readers import reads_runs
from distbench.cli.reading import analysed, damage_json, priced
from distbench.record import catalog
from distbench.record.run_folder import resume_command
from distbench.report import markdown, overview, terminal
from distbench.report.markdown import of_view
from distbench.report.raw_view import raw_sheet, raw_tables
from distbench.report.run_export import run_json
from distbench.report.terminal import footnote_lines
from distbench.report.view import views


@reads_runs
def show(
    name: RunName,
    out: Out = REPORTS,
    view: Annotated[str, option("--view", "VIEW", "Show one view in detail.")] = "",
    price: Price = "",
    markdown: Markdown = False,
    csv: Csv = False,
    as_json: Json = False,
) -> int:
    """Show a run's results."""
    check_forms("show", md=markdown, csv=csv, json=as_json)
    form = "md" if markdown else "csv" if csv else "json" if as_json else ""
    stored = catalog.find(name, out)
    run = priced(analysed(stored), price)
    if view:
        check_word("--view", view, list(dict.fromkeys([*views(), *raw_tables(run)])))
        print_view(run, view, form)
    else:
        print_run(run, form)
    # the arms of a gate are resumed together
    if run.info.state == "interrupted" and not catalog.is_arm(stored):
        note(f"interrupted; resume with: {resume_command(stored.folder)}")
    return 0


def print_run(run: AnalysedRun, form: str) -> None:
    """Print a run as *form*, a flag of ``show``; empty for text."""
    if form == "json":
        say_json(run_json(run))
    elif form == "md":
        say(markdown.page(run))
    elif form == "csv":
        say(overview.sheet(run).as_csv())
    else:
        say(terminal.table(run, width(), paint))


def print_view(run: AnalysedRun, view: str, form: str = "") -> None:
    """Print one view of a run as *form*, a flag of ``show``; as text with the footnotes of marked cases."""
    known, notes = views(), run.parity.footnotes
    sheet = known[view].sheet(run) if view in known else raw_sheet(run, view)
    if form == "json":
        say_json({"run_id": run.info.run_id, "view": view, **sheet.to_json(), "damaged": damage_json(run)})
        return
    if form:
        say(of_view(sheet) if form == "md" else sheet.as_csv())
        return
    text = sheet.as_text(width(), paint)
    say(text)
    # not every view marks its cases
    if any(mark in text for mark in notes.marks.values()):
        say("\n" + "\n".join(footnote_lines(notes, width())))
