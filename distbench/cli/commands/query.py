"""``distbench query``: SQL over runs."""

from __future__ import annotations

import dataclasses
import json
import math
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from distbench.cli.decorators import reads_runs
from distbench.cli.options import (
    DEFAULT_RUNS_FOLDER,
    JsonOption,
    OutOption,
    argument,
    check_choice,
    flag,
    option,
)
from distbench.cli.output import (
    print_json,
    print_text,
    print_warning,
    terminal_width,
    wrap_to_terminal,
)
from distbench.core.errors import UsageError
from distbench.core.text import one_line, shorten, strip_control_characters
from distbench.tables.foreign_text import escape_markdown, write_csv

if TYPE_CHECKING:
    from distbench.query import QueryResult
    from distbench.record.run_folder import Run

_DEFAULT_FORMAT = "table"
"""Format without ``--format``."""
_LONGEST_CELL = 40


@reads_runs
def query(
    sql: Annotated[str, argument("SQL", "Query in DuckDB's SQL.")] = "",
    names: Annotated[list[str] | None, argument("[RUN]...", "Runs to query (default: all).")] = None,
    out: OutOption = DEFAULT_RUNS_FOLDER,
    format_: Annotated[
        str, option("--format", "FORMAT", "table, csv, json or markdown.", has_default=True)
    ] = _DEFAULT_FORMAT,
    as_json: JsonOption = False,
    files: Annotated[
        list[str] | None,
        option("--table", "NAME=FILE", "Also a table from CSV or the output of nccl-tests. Repeatable."),
    ] = None,
    tables: Annotated[bool, flag("--tables", text="List the tables and their columns.")] = False,
) -> int:
    """Query runs with SQL."""
    from distbench.cli.stored_runs import warn_about_damage
    from distbench.query import Database
    from distbench.query.table_files import parse_table_options

    check_choice("--format", format_, _FORMATTERS)
    if as_json and format_ not in (_DEFAULT_FORMAT, "json"):
        raise UsageError(f"query: use only one of --json and --format {format_}")
    format_ = "json" if as_json else format_
    read_files = parse_table_options(files or [])
    if tables:
        return _print_tables([name for name in (sql, *(names or [])) if name], out, format_, read_files)
    if not sql.strip():
        raise UsageError('query: missing SQL, such as "select * from cases"; --tables lists the tables')
    database = Database(_find_runs(names or [], out), read_files)
    for run, damaged in database.damaged:
        warn_about_damage(damaged, run.folder)
    with _default_sigint():
        answer = database.query(sql)
    for folder, reason in database.contradictory.items():
        print_warning(f"skipping {folder} in views: {one_line(reason)}")
    print_text(_FORMATTERS[format_](answer))
    return 0


def _print_tables(names: Sequence[str], out: Path, format_: str, files: Mapping[str, Path]) -> int:
    """Print the tables and their columns, including those of single runs and of *files*."""
    from distbench.query import Database
    from distbench.record import catalog

    tables = Database(_find_runs(names, out) if names else catalog.runs_in(out), files).tables()
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
    from distbench.api.stored_runs import drop_copies
    from distbench.record import catalog

    chosen = [catalog.find_run(name, out) for name in names] if names else catalog.runs_in(out)
    if not chosen:
        raise UsageError(f"no runs in {out}; start one with distbench run SUITE, or name a run's folder")
    # a run named twice counts once, and so does one that was copied
    kept, lines = drop_copies({run.folder.resolve(): run for run in chosen}.values())
    for line in lines:
        print_warning(line)
    return kept


def _to_table(answer: QueryResult) -> str:
    """Result as lines for people: sensible digits, – for null."""
    rows = [
        list(map(strip_control_characters, answer.columns)),
        *([_cell_text(value) for value in row] for row in answer.rows),
    ]
    if sum(_column_widths(rows)) + 2 * (len(rows[0]) - 1) > terminal_width():
        rows = [[shorten(cell, _LONGEST_CELL) for cell in row] for row in rows]
    aligned = [
        f"{'>' if _is_number(answer, i) else '<'}{size}" for i, size in enumerate(_column_widths(rows))
    ]
    lines = ["  ".join(map(format, row, aligned)).rstrip() for row in rows]
    return "\n".join(lines if answer.rows else [*lines, "no rows"])


def _column_widths(rows: list[list[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def _is_number(answer: QueryResult, column: int) -> bool:
    values = [row[column] for row in answer.rows if row[column] is not None]
    return all(isinstance(value, int | float | Decimal) and not isinstance(value, bool) for value in values)


def _cell_text(value: Any) -> str:
    """Value for people: numbers with five digits, whole numbers in full."""
    if isinstance(value, Decimal):
        value = float(value)
    if not isinstance(value, float) or not math.isfinite(value):
        return "–" if value is None else " ".join(strip_control_characters(_text(value)).split())
    if value.is_integer() or abs(value) >= 1e5:
        return f"{value:.0f}" if abs(value) < 1e15 else f"{value:.5g}"
    return f"{value:.5g}"


def _to_csv(answer: QueryResult) -> str:
    """Result as CSV with every digit; null is empty."""
    return write_csv([answer.columns, *answer.rows], _text)


def _to_json(answer: QueryResult) -> str:
    """Result as a JSON list of objects; null for values that JSON does not have."""
    names = _unique_names(answer.columns)
    rows = [
        {name: _json_value(value, type_) for name, value, type_ in zip(names, row, answer.types, strict=True)}
        for row in answer.rows
    ]
    return json.dumps(rows, default=_text, allow_nan=False)


def _to_markdown(answer: QueryResult) -> str:
    """Result as a Markdown table, with the digits of the table for people."""
    ruled = ["---:" if _is_number(answer, i) else "---" for i in range(len(answer.columns))]
    lines = [list(answer.columns), ruled, *([_cell_text(value) for value in row] for row in answer.rows)]
    return "\n".join(f"| {' | '.join(map(escape_markdown, line))} |" for line in lines)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if hasattr(value, "isoformat"):
        return str(value.isoformat())
    return json.dumps(value, default=_text) if isinstance(value, list | dict) else str(value)


def _json_value(value: Any, type_: str) -> Any:
    if isinstance(value, Decimal):
        value = float(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _json_value(part, "") for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(part, "") for part in value]
    # a column of JSON is data, not text
    return json.loads(value) if type_ == "JSON" and value is not None else value


def _unique_names(names: Sequence[str]) -> list[str]:
    """*names* with a number after each repeated one: an object has one value per name."""
    distinct: list[str] = []
    for name in names:
        candidate, number = name, 1
        while candidate in distinct:
            number += 1
            candidate = f"{name}_{number}"
        distinct.append(candidate)
    return distinct


_FORMATTERS = {"table": _to_table, "csv": _to_csv, "json": _to_json, "markdown": _to_markdown}
