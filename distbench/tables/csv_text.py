"""CSV of foreign text, protected from spreadsheet formulas."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Any

# same as in the page's script; a number may begin with a sign
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def write_csv(rows: Iterable[Sequence[Any]], text: Callable[[Any], str] = str) -> str:
    """*rows* as CSV, each value formatted by *text*; None is empty.

    Text that starts like a formula gets an apostrophe in front, unless it is a number.
    """
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerows([_cell(value, text) for value in row] for row in rows)
    return lines.getvalue().removesuffix("\n")


def _cell(value: Any, text: Callable[[Any], str]) -> str:
    shown = "" if value is None else text(value)
    return (
        f"'{shown}" if shown.startswith(_FORMULA) and not isinstance(value, int | float | Decimal) else shown
    )
