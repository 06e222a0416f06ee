"""``distbench show``: the results of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from distbench.cli.decorators import reads_runs
from distbench.cli.options import (
    DEFAULT_RUNS_FOLDER,
    CsvOption,
    JsonOption,
    MarkdownOption,
    OutOption,
    PriceOption,
    RunArgument,
    check_choice,
    check_exclusive,
    option,
)
from distbench.cli.output import apply_style, print_json, print_note, print_text, terminal_width

if TYPE_CHECKING:
    from distbench.analysis.run import RunAnalysis


@reads_runs
def show(
    name: RunArgument,
    out: OutOption = DEFAULT_RUNS_FOLDER,
    view: Annotated[str, option("--view", "VIEW", "Show one view in detail.")] = "",
    price: PriceOption = "",
    markdown: MarkdownOption = False,
    csv: CsvOption = False,
    as_json: JsonOption = False,
) -> int:
    """Show a run's results."""
    from distbench.cli.stored_runs import apply_price, load_run
    from distbench.record import catalog
    from distbench.record.run_folder import resume_command
    from distbench.report.run_export import record_table_names
    from distbench.views.base import all_views

    check_exclusive("show", md=markdown, csv=csv, json=as_json)
    form = "md" if markdown else "csv" if csv else "json" if as_json else ""
    stored = catalog.find_run(name, out)
    run = apply_price(load_run(stored), price)
    if view:
        check_choice("--view", view, list(dict.fromkeys([*all_views(), *record_table_names(run)])))
        _print_view(run, view, form)
    else:
        _print_run(run, form)
    # the arms of a gate are resumed together
    if run.info.state == "interrupted" and not catalog.is_gate_arm(stored):
        print_note(f"interrupted; resume with: {resume_command(stored.folder)}")
    return 0


def _print_run(run: RunAnalysis, form: str) -> None:
    """Print a run as *form*, a flag of ``show``; empty for text."""
    from distbench.report import overview
    from distbench.report.run_export import run_json

    if form == "json":
        print_json(run_json(run))
    elif form == "md":
        print_text(overview.run_markdown(run))
    elif form == "csv":
        print_text(overview.overview_table(run).to_csv())
    else:
        print_text(overview.overview_text(run, terminal_width(), apply_style))


def _print_view(run: RunAnalysis, view: str, form: str = "") -> None:
    """Print one view of a run as *form*, a flag of ``show``; as text with the footnotes of marked cases."""
    from distbench.cli.stored_runs import damage_json
    from distbench.report.overview import footnote_lines, view_markdown
    from distbench.report.run_export import record_table
    from distbench.views.base import all_views

    known, notes = all_views(), run.parity.footnotes
    table = known[view].table(run) if view in known else record_table(run, view)
    if form == "json":
        print_json({"run_id": run.info.run_id, "view": view, **table.to_json(), "damaged": damage_json(run)})
        return
    if form:
        print_text(view_markdown(table) if form == "md" else table.to_csv())
        return
    text = table.to_text(terminal_width(), apply_style)
    print_text(text)
    # not every view marks its cases
    if any(mark in text for mark in notes.marks.values()):
        print_text("\n" + "\n".join(footnote_lines(notes, terminal_width())))
