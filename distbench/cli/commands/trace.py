"""``distbench trace``: where the time of a training goes, from the traces that its profiler left."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from distbench.cli.options import (
    CsvOption,
    JsonOption,
    MarkdownOption,
    argument,
    check_choice,
    check_exclusive,
    option,
)
from distbench.cli.output import (
    apply_style,
    print_json,
    print_note,
    print_text,
    terminal_width,
    wrap_to_terminal,
)
from distbench.core.errors import UsageError

if TYPE_CHECKING:
    from distbench.analysis.traces.job_trace import JobTrace
    from distbench.api.traces import TraceReport
    from distbench.tables.table import Table


def trace(
    context: typer.Context,
    files: Annotated[
        list[Path],
        argument("FILES...", "Chrome traces of torch.profiler (.json, .json.gz), their folder, or a run."),
    ],
    against: Annotated[
        Path | None, option("--against", "FILE", "Explain the difference to this trace, or folder of traces.")
    ] = None,
    rank: Annotated[int | None, option("--rank", "N", "Rank of the only file, if it does not say.")] = None,
    table: Annotated[
        str, option("--table", "TABLE", "Show one table: losses, steps, ranks, collectives, operators, ...")
    ] = "",
    html: Annotated[
        Path | None, option("--html", "FILE", "Also write a page that opens without a network.")
    ] = None,
    out: Annotated[
        Path | None, option("--out", "DIR", "Also keep it as a run in DIR: show, query, compare, report.")
    ] = None,
    markdown: MarkdownOption = False,
    csv: CsvOption = False,
    as_json: JsonOption = False,
) -> int:
    """Explain the profiler traces of any training."""
    from distbench.api.traces import CHANGES
    from distbench.api.traces import trace as explain
    from distbench.report.trace_tables import TABLES

    check_exclusive("trace", md=markdown, csv=csv, json=as_json)
    names = [*TABLES, *([CHANGES] if against else [])]
    if table:
        check_choice("--table", table, names)
    elif csv or markdown:
        form = "--csv" if csv else "--md"
        raise UsageError(f"{form}: choose a table with --table; allowed: {', '.join(names)}")
    read = explain(files, against=against, rank=rank)
    tables = {name: make() for name, make in read.makers.items() if not table or name == table}
    if html:
        from distbench.report import trace_page

        every = tables if not table else {name: make() for name, make in read.makers.items()}
        trace_page.write(read.job, every, read.notes, html)
        print_note(f"page: {html}")
    if out:
        _keep(read, out, context.obj)
    if as_json:
        print_json({"notes": read.notes, "tables": {name: each.to_json() for name, each in tables.items()}})
    elif table:
        chosen = tables[table]
        print_text(chosen.to_csv() if csv else chosen.to_markdown() if markdown else _text(chosen))
    else:
        _print_overview(read.job, tables, read.notes)
    return 0


def _keep(read: TraceReport, out: Path, words: Sequence[str]) -> None:
    from distbench.analysis.run import RunAnalysis
    from distbench.api.suite_run import write_report
    from distbench.api.traces import store

    run = store(read, out, words)
    print_note(f"run: {run.folder}")
    print_note(f"report: {write_report(run, RunAnalysis.read(run))}")


def _text(table: Table) -> str:
    from distbench.report.trace_fields import largest_rows

    return largest_rows(table).to_text(terminal_width(), apply_style)


def _print_overview(job: JobTrace, tables: dict[str, Table], notes: list[str]) -> None:
    from distbench.report.trace_overview import overview_lines

    print_text("\n".join(overview_lines(job, terminal_width())))
    shown = "changes" if "changes" in tables else "steps"
    print_text("\n" + _text(tables[shown]))
    for note in notes:
        print_text("\n" + wrap_to_terminal(f"Note: {note}.", 0))
    more = [name for name, table in tables.items() if name != shown and table.rows]
    print_text("\n" + wrap_to_terminal(f"More with --table: {', '.join(more)}.", 0))
