"""Format results of ``distbench query`` as text, CSV, JSON and Markdown."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from distbench.cli.output import terminal_width
from distbench.core.text import shorten, strip_control_characters
from distbench.query import QueryResult
from distbench.tables.foreign_text import escape_markdown, write_csv

_LONGEST_CELL = 40


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


QUERY_FORMATS = {"table": _to_table, "csv": _to_csv, "json": _to_json, "markdown": _to_markdown}
