"""``distbench query``: SQL over runs."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from distbench.cli.copies import drop_copies
from distbench.cli.options import (
    DEFAULT_RUNS_FOLDER,
    JsonOption,
    OutOption,
    argument,
    check_choice,
    flag,
    option,
)
from distbench.cli.output import print_json, print_note, print_text, wrap_to_terminal
from distbench.cli.query_output import QUERY_FORMATS
from distbench.cli.readers import reads_runs
from distbench.cli.run_reader import warn_about_damage
from distbench.core.errors import UsageError
from distbench.query import Database
from distbench.record import catalog
from distbench.record.run_folder import Run

_DEFAULT_FORMAT = "table"
"""Format without ``--format``."""


@reads_runs
def query(
    sql: Annotated[str, argument("SQL", "Query in DuckDB's SQL.")] = "",
    names: Annotated[list[str] | None, argument("[RUN]...", "Runs to query (default: all).")] = None,
    out: OutOption = DEFAULT_RUNS_FOLDER,
    format_: Annotated[
        str, option("--format", "FORMAT", "table, csv, json or markdown.", has_default=True)
    ] = _DEFAULT_FORMAT,
    as_json: JsonOption = False,
    tables: Annotated[bool, flag("--tables", text="List the tables and their columns.")] = False,
) -> int:
    """Query runs with SQL."""
    check_choice("--format", format_, QUERY_FORMATS)
    if as_json and format_ not in (_DEFAULT_FORMAT, "json"):
        raise UsageError(f"query: use only one of --json and --format {format_}")
    format_ = "json" if as_json else format_
    if tables:
        return _print_tables([name for name in (sql, *(names or [])) if name], out, format_)
    if not sql.strip():
        raise UsageError('query: missing SQL, such as "select * from cases"; --tables lists the tables')
    database = Database(_find_runs(names or [], out))
    for run, damaged in database.damaged:
        warn_about_damage(damaged, run.folder)
    with _default_sigint():
        answer = database.query(sql)
    print_text(QUERY_FORMATS[format_](answer))
    return 0


def _print_tables(names: Sequence[str], out: Path, format_: str) -> int:
    """Print the tables and their columns, including those of single runs."""
    tables = Database(_find_runs(names, out) if names else catalog.runs_in(out)).tables()
    if format_ == "json":
        print_json([dataclasses.asdict(table) for table in tables])
        return 0
    for table in tables:
        print_text(wrap_to_terminal(f"{table.name}: {table.doc}", 0, 2))
        for column in table.columns:
            kind = f"{column.type}, {column.unit}" if column.unit else column.type
            print_text(wrap_to_terminal(f"{column.name}: {kind}. {column.doc}", 2, 4))
        print_text()
    return 0


@contextmanager
def _default_sigint() -> Iterator[None]:
    """Let Ctrl-C end the process: DuckDB may ignore it for hours, and there is nothing to save."""
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _find_runs(names: Sequence[str], out: Path) -> list[Run]:
    chosen = [catalog.find_run(name, out) for name in names] if names else catalog.runs_in(out)
    if not chosen:
        raise UsageError(f"no runs in {out}; start one with distbench run SUITE, or name a run's folder")
    # a run named twice counts once, and so does one that was copied
    kept, lines = drop_copies({run.folder.resolve(): run for run in chosen}.values())
    for line in lines:
        print_note(f"distbench: warning: {line}")
    return kept
