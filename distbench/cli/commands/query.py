"""``distbench query``: SQL over runs."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from distbench.cli.copies import once
from distbench.cli.options import REPORTS, Json, Out, argument, check_word, flag, option
from distbench.cli.output import note, say, say_json, wrapped
from distbench.cli.query_output import FORMATS
from distbench.cli.readers import reads_runs
from distbench.cli.reading import warn_of
from distbench.core.errors import UsageError
from distbench.query import Database
from distbench.record import catalog
from distbench.record.run_folder import Run

_UNSET = "table"
"""Format without ``--format``."""


@reads_runs
def query(
    sql: Annotated[str, argument("SQL", "Query in DuckDB's SQL.")] = "",
    names: Annotated[list[str] | None, argument("[RUN]...", "Runs to query (default: all).")] = None,
    out: Out = REPORTS,
    format_: Annotated[
        str, option("--format", "FORMAT", "table, csv, json or markdown.", has_default=True)
    ] = _UNSET,
    as_json: Json = False,
    tables: Annotated[bool, flag("--tables", text="List the tables and their columns.")] = False,
) -> int:
    """Query runs with SQL."""
    check_word("--format", format_, FORMATS)
    if as_json and format_ not in (_UNSET, "json"):
        raise UsageError(f"query: use only one of --json and --format {format_}")
    format_ = "json" if as_json else format_
    if tables:
        return _print_tables([name for name in (sql, *(names or [])) if name], out, format_)
    if not sql.strip():
        raise UsageError('query: missing SQL, such as "select * from cases"; --tables lists the tables')
    database = Database(_runs(names or [], out))
    for run, damaged in database.damaged:
        warn_of(damaged, run.folder)
    with _ended_at_once():
        answer = database.ask(sql)
    say(FORMATS[format_](answer))
    return 0


def _print_tables(names: Sequence[str], out: Path, format_: str) -> int:
    """Print the tables and their columns, including those of single runs."""
    tables = Database(_runs(names, out) if names else catalog.inside(out)).tables()
    if format_ == "json":
        say_json([dataclasses.asdict(table) for table in tables])
        return 0
    for table in tables:
        say(wrapped(f"{table.name}: {table.doc}", 0, 2))
        for column in table.columns:
            kind = f"{column.type}, {column.unit}" if column.unit else column.type
            say(wrapped(f"{column.name}: {kind}. {column.doc}", 2, 4))
        say()
    return 0


@contextmanager
def _ended_at_once() -> Iterator[None]:
    """Let Ctrl-C end the process: DuckDB may ignore it for hours, and there is nothing to save."""
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _runs(names: Sequence[str], out: Path) -> list[Run]:
    chosen = [catalog.find(name, out) for name in names] if names else catalog.inside(out)
    if not chosen:
        raise UsageError(f"no runs in {out}; start one with distbench run SUITE, or name a run's folder")
    # a run named twice counts once, and so does one that was copied
    kept, lines = once({run.folder.resolve(): run for run in chosen}.values())
    for line in lines:
        note(f"distbench: warning: {line}")
    return kept
