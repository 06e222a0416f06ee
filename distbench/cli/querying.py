"""``distbench query``: SQL over runs."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

from distbench.analysis.text import plain, shorten
from distbench.cli.printing import say, say_json, width, wrapped
from distbench.cli.showing import find_run
from distbench.errors import UsageError, did_you_mean
from distbench.query import Answer, Database
from distbench.store import Run

_LONGEST_CELL = 40


def ask(sql: str, names: Sequence[str], *, out: Path, format_: str) -> int:
    """Print the answer to *sql* over the runs of *names*, or over all in *out*."""
    if not sql.strip():
        raise UsageError('query: which? distbench query "select * from cases"; --tables shows what there is')
    _check(format_)
    database = Database(_runs(names, out))
    with _ended_at_once():
        answer = database.ask(sql)
    say(_FORMATS[format_](answer))
    return 0


def show_tables(names: Sequence[str], *, out: Path, format_: str) -> int:
    """Print the tables and their columns, those of any run included."""
    _check(format_)
    runs = _runs(names, out) if names else _all(out)
    tables = Database(runs).tables()
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
    """Let Ctrl-C end the process: DuckDB may not look at it for hours, and nothing is there to be saved."""
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _check(format_: str) -> None:
    if format_ not in _FORMATS:
        raise UsageError(f"--format = {format_!r}: {did_you_mean(format_, _FORMATS)}")


def _runs(names: Sequence[str], out: Path) -> list[Run]:
    runs = [find_run(name, out) for name in names] if names else _all(out)
    if not runs:
        raise UsageError(f"no run in {out}; begin one with: distbench run SUITE, or name its folder")
    # a run that is named twice is still one
    return list({run.folder.resolve(): run for run in runs}.values())


def _all(out: Path) -> list[Run]:
    return [Run(file.parent) for file in sorted(out.glob("*/run.json"))]


def _as_table(answer: Answer) -> str:
    """Return the answer as lines for people: sensible digits, – where nothing is known."""
    rows = [list(map(plain, answer.columns)), *([_cell(value) for value in row] for row in answer.rows)]
    if _wide(rows) > width():
        rows = [[shorten(cell, _LONGEST_CELL) for cell in row] for row in rows]
    sizes = [max(map(len, column)) for column in zip(*rows, strict=True)]
    right = [_is_number(answer, i) for i in range(len(sizes))]
    lines = [
        "  ".join(
            cell.rjust(size) if number else cell.ljust(size)
            for cell, size, number in zip(row, sizes, right, strict=True)
        ).rstrip()
        for row in rows
    ]
    return "\n".join(lines if answer.rows else [*lines, "no rows"])


def _wide(rows: list[list[str]]) -> int:
    return sum(max(map(len, column)) + 2 for column in zip(*rows, strict=True)) - 2


def _is_number(answer: Answer, column: int) -> bool:
    values = [row[column] for row in answer.rows if row[column] is not None]
    return all(isinstance(value, int | float | Decimal) and not isinstance(value, bool) for value in values)


def _cell(value: Any) -> str:
    """Return a value for people: numbers with five digits, but whole ones in full."""
    if isinstance(value, Decimal):
        value = float(value)
    if not isinstance(value, float) or not math.isfinite(value):
        return "–" if value is None else " ".join(plain(_text(value)).split())
    if value.is_integer() or abs(value) >= 1e5:
        return f"{value:.0f}" if abs(value) < 1e15 else f"{value:.5g}"
    return f"{value:.5g}"


def _as_csv(answer: Answer) -> str:
    """Return the answer as CSV, every digit of it; what is null is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(answer.columns)
    writer.writerows(["" if value is None else _text(value) for value in row] for row in answer.rows)
    return text.getvalue().removesuffix("\n")


def _as_json(answer: Answer) -> str:
    """Return the answer as a list of objects; null for what JSON can't say."""
    names = _distinct(answer.columns)
    rows = [
        {name: _json(value, type_) for name, value, type_ in zip(names, row, answer.types, strict=True)}
        for row in answer.rows
    ]
    return json.dumps(rows, default=_text, allow_nan=False)


def _as_markdown(answer: Answer) -> str:
    """Return the answer as a table of Markdown, with the digits of the table for people."""
    lines = [
        list(answer.columns),
        [("---:" if _is_number(answer, i) else "---") for i in range(len(answer.columns))],
    ]
    lines += [[_cell(value) for value in row] for row in answer.rows]
    escaped = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in escaped)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if hasattr(value, "isoformat"):
        return str(value.isoformat())
    return json.dumps(value, default=_text) if isinstance(value, list | dict) else str(value)


def _json(value: Any, type_: str) -> Any:
    if isinstance(value, Decimal):
        value = float(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _json(part, "") for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_json(part, "") for part in value]
    # what was kept as JSON is data and no text
    return json.loads(value) if type_ == "JSON" and value is not None else value


def _distinct(names: Sequence[str]) -> list[str]:
    """Return *names* with a number behind each that stood before: an object keeps one value a name."""
    found: list[str] = []
    for name in names:
        made, number = name, 1
        while made in found:
            number += 1
            made = f"{name}_{number}"
        found.append(made)
    return found


_FORMATS: dict[str, Callable[[Answer], str]] = {
    "table": _as_table,
    "csv": _as_csv,
    "json": _as_json,
    "markdown": _as_markdown,
}
