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
from distbench.core.errors import UsageError

if TYPE_CHECKING:
    from distbench.analysis.run import RunAnalysis
    from distbench.tables.table import Table


@reads_runs
def show(
    name: RunArgument,
    out: OutOption = DEFAULT_RUNS_FOLDER,
    view: Annotated[str, option("--view", "VIEW", "Show one view in detail.")] = "",
    raw: Annotated[str, option("--raw", "TABLE", "Show all rows of a table of the records.")] = "",
    price: PriceOption = "",
    markdown: MarkdownOption = False,
    csv: CsvOption = False,
    as_json: JsonOption = False,
) -> int:
    """Show a run's results."""
    from distbench.cli.stored_runs import apply_price, load_run
    from distbench.record import catalog
    from distbench.record.run_folder import resume_command
    from distbench.report.run_export import record_table, record_table_names
    from distbench.views.base import all_views

    check_exclusive("show", md=markdown, csv=csv, json=as_json)
    check_exclusive("show", view=bool(view), raw=bool(raw))
    form = "md" if markdown else "csv" if csv else "json" if as_json else ""
    stored = catalog.find_run(name, out)
    run = apply_price(load_run(stored), price)
    if view:
        if view not in all_views() and view in record_table_names(run):
            raise UsageError(f"--view = {view!r}: it is a table of the records; use --raw {view}")
        check_choice("--view", view, all_views())
        _print_table(run, {"view": view}, all_views()[view].table(run), form)
    elif raw:
        if not (names := record_table_names(run)):
            raise UsageError(f"--raw = {raw!r}: no record of this run has a table")
        check_choice("--raw", raw, names)
        _print_table(run, {"table": raw}, record_table(run, raw), form)
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


def _print_table(run: RunAnalysis, remarks: dict[str, str], table: Table, form: str = "") -> None:
    """Print a *table* of a run as *form*, a flag of ``show``; as text with the footnotes of marked cases.

    Args:
        said: What the table is, for JSON.
    """
    from distbench.api.stored_runs import damage_json
    from distbench.report.overview import footnote_lines, view_markdown

    notes = run.parity.footnotes
    if form == "json":
        print_json({"run_id": run.info.run_id, **remarks, **table.to_json(), "damaged": damage_json(run)})
        return
    if form:
        print_text(view_markdown(table) if form == "md" else table.to_csv())
        return
    text = table.to_text(terminal_width(), apply_style)
    print_text(text)
    # not every view marks its cases
    if any(mark in text for mark in notes.marks.values()):
        print_text("\n" + "\n".join(footnote_lines(notes, terminal_width())))
