"""Answers of ``distbench query`` as text, CSV, JSON and Markdown."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from distbench.cli.output import width
from distbench.core.text import plain, shorten
from distbench.query import Answer
from distbench.tables.csv_text import csv_text
from distbench.tables.markdown_text import escaped

_LONGEST_CELL = 40


def _as_table(answer: Answer) -> str:
    """Answer as lines for people: sensible digits, – for null."""
    rows = [list(map(plain, answer.columns)), *([_cell(value) for value in row] for row in answer.rows)]
    if sum(_sizes(rows)) + 2 * (len(rows[0]) - 1) > width():
        rows = [[shorten(cell, _LONGEST_CELL) for cell in row] for row in rows]
    aligned = [f"{'>' if _is_number(answer, i) else '<'}{size}" for i, size in enumerate(_sizes(rows))]
    lines = ["  ".join(map(format, row, aligned)).rstrip() for row in rows]
    return "\n".join(lines if answer.rows else [*lines, "no rows"])


def _sizes(rows: list[list[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def _is_number(answer: Answer, column: int) -> bool:
    values = [row[column] for row in answer.rows if row[column] is not None]
    return all(isinstance(value, int | float | Decimal) and not isinstance(value, bool) for value in values)


def _cell(value: Any) -> str:
    """Value for people: numbers with five digits, whole numbers in full."""
    if isinstance(value, Decimal):
        value = float(value)
    if not isinstance(value, float) or not math.isfinite(value):
        return "–" if value is None else " ".join(plain(_text(value)).split())
    if value.is_integer() or abs(value) >= 1e5:
        return f"{value:.0f}" if abs(value) < 1e15 else f"{value:.5g}"
    return f"{value:.5g}"


def _as_csv(answer: Answer) -> str:
    """Answer as CSV with every digit; null is empty."""
    return csv_text([answer.columns, *answer.rows], _text)


def _as_json(answer: Answer) -> str:
    """Answer as a JSON list of objects; null for values that JSON does not have."""
    names = _distinct(answer.columns)
    rows = [
        {name: _json(value, type_) for name, value, type_ in zip(names, row, answer.types, strict=True)}
        for row in answer.rows
    ]
    return json.dumps(rows, default=_text, allow_nan=False)


def _as_markdown(answer: Answer) -> str:
    """Answer as a Markdown table, with the digits of the table for people."""
    ruled = ["---:" if _is_number(answer, i) else "---" for i in range(len(answer.columns))]
    lines = [list(answer.columns), ruled, *([_cell(value) for value in row] for row in answer.rows)]
    return "\n".join(f"| {' | '.join(map(escaped, line))} |" for line in lines)


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
    # a column of JSON is data, not text
    return json.loads(value) if type_ == "JSON" and value is not None else value


def _distinct(names: Sequence[str]) -> list[str]:
    """*names* with a number after each repeated one: an object has one value per name."""
    distinct: list[str] = []
    for name in names:
        candidate, number = name, 1
        while candidate in distinct:
            number += 1
            candidate = f"{name}_{number}"
        distinct.append(candidate)
    return distinct


FORMATS = {"table": _as_table, "csv": _as_csv, "json": _as_json, "markdown": _as_markdown}
