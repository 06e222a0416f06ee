"""A typed table: what people read and what programs get are rendered from the same cells.

Text for the terminal, Markdown for comments, cells for the page, JSON and CSV; SQL tables are made of
``Sheet.records`` too. A number that is not known is ``ABSENT`` wherever people read it, and null or empty
where programs do, with its reason in JSON.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from distbench.core.grouping import grouped
from distbench.core.text import one_line
from distbench.core.units import ABSENT, value_text
from distbench.tables.csv_text import csv_text
from distbench.tables.emphasis import Paint, Tone, unpainted
from distbench.tables.line_wrapping import folded
from distbench.tables.markdown_text import escaped
from distbench.tables.text_table import Line, table

Value = str | int | float | bool | None
Cells = Mapping[str, "Value | Cell"]
PERCENT = "{:.1%}".format
"""Format of a fraction."""

_LONGEST_CELL = 300
_DESCRIPTION = ("name", "heading", "type", "unit", "better", "doc")
_ARROWS = {"higher": " ↑", "lower": " ↓", None: ""}


@dataclass(frozen=True)
class Cell:
    """A value that is shown in other words than its column's format gives, or that is absent for a reason."""

    value: Value
    text: str = ""
    """What people read; empty: by the format of the column."""
    reason: str = ""
    """Why *value* is None."""
    tone: Tone = ""
    """Shown where text has colours; empty: that of the row."""


@dataclass(frozen=True)
class Field:
    """One column."""

    name: str
    """In JSON, CSV and SQL."""
    heading: str
    """For people; empty: only programs see the column."""
    doc: str = ""
    unit: str = ""
    """``s``, ``B``, ``tokens/s`` or empty, as in records."""
    better: Literal["higher", "lower"] | None = None
    """Direction of better."""
    type: Literal["varchar", "double", "bigint", "boolean"] = "double"
    """Type in SQL; text is aligned to the left."""
    format: Callable[[Any], str] | None = None
    """Text of a known value; None: by its unit."""

    def text(self, value: Value | Cell) -> str:
        """What people read in a cell of this column."""
        cell = value if isinstance(value, Cell) else Cell(value)
        if cell.text or cell.value is None:
            return cell.text or ABSENT
        if self.format:
            return self.format(cell.value)
        if isinstance(cell.value, bool):
            return "yes" if cell.value else "no"
        return one_line(cell.value) if isinstance(cell.value, str) else value_text(cell.value, self.unit)


@dataclass(frozen=True)
class Row:
    """One row; a column without a cell is absent."""

    cells: Cells
    group: str = ""
    """Heading above this row and those that follow with the same."""
    instead: str = ""
    """A sentence in place of all cells but the first, for people."""
    tone: Tone = ""
    """Of all cells that have none of their own."""

    def value(self, name: str) -> Value:
        """The value of a column, None if it is absent."""
        cell = self.cells.get(name)
        return cell.value if isinstance(cell, Cell) else cell


@dataclass(frozen=True)
class Sheet:
    """A table with a title, what its columns mean, and what to know of its numbers."""

    title: str
    caption: str
    """What the numbers are, with the direction of better."""
    fields: tuple[Field, ...]
    """The first column that people see holds the names of the rows."""
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    """Sentences below the table: findings, and why numbers are missing."""

    @property
    def shown(self) -> tuple[Field, ...]:
        """The columns that people see."""
        return tuple(each for each in self.fields if each.heading)

    @property
    def headings(self) -> tuple[str, ...]:
        """What stands above the columns that people see."""
        return tuple(each.heading for each in self.shown)

    def texts(self) -> Iterator[tuple[str, ...]]:
        """Rows as people read them; a tuple of one is the heading of the group that follows."""
        group = ""
        for row in self.rows:
            if row.group != group:
                group = row.group
                yield (group,)
            yield self._texts(row)

    def pick(self, *names: str) -> Sheet:
        """The same rows with these columns alone."""
        fields = {each.name: each for each in self.fields}
        return replace(self, fields=tuple(fields[name] for name in names))

    def records(self) -> list[dict[str, Value]]:
        """Rows for programs: every column by its name, None where it is absent."""
        return [{each.name: _plain(row.value(each.name)) for each in self.fields} for row in self.rows]

    def as_text(self, width: int, paint: Paint = unpainted) -> str:
        """Lines of plain text, *width* characters wide where the cells allow it."""
        lines = [*([self.title] if self.title else []), *folded(self.caption, width), ""]
        lines += self.text_rows(width, paint) if self.rows else ["Nothing to show."]
        for note in self.notes:
            lines += ["", *folded(note, width)]
        return "\n".join(lines)

    def text_rows(self, width: int, paint: Paint = unpainted) -> list[str]:
        """The headings and the rows as lines."""
        left = [each.type == "varchar" for each in self.shown]
        lines = [
            Line(name_and_others, self._tones(row), group, row.instead)
            for row, name_and_others, group in self._named()
        ]
        return table(self.headings, lines, left, width, paint)

    def as_markdown(self) -> str:
        """A table of Markdown; foreign text in it makes no markup. Empty without rows."""
        ruled = ["---" if each.type == "varchar" else "---:" for each in self.shown]
        headings = [escaped(each.heading) + _ARROWS[each.better] for each in self.shown]
        lines = [headings, ["---", *ruled[1:]]]
        for cells in self.texts():
            texts = [f"**{escaped(cells[0])}**"] if len(cells) == 1 else [escaped(text) for text in cells]
            lines.append(texts + [""] * (len(headings) - len(texts)))
        return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) if self.rows else ""

    def as_csv(self) -> str:
        """Names of the columns and every digit of their values; what is absent is empty."""
        rows = [list(row.values()) for row in self.records()]
        return csv_text([[each.name for each in self.fields], *rows], _digits)

    def to_json(self) -> dict[str, Any]:
        """Columns, rows by the names of the columns, why values are absent, and the notes."""
        rows = [
            # a table of a plug-in may have a column of that name
            {**({"absent": why} if (why := self._reasons(row)) else {}), **values}
            for row, values in zip(self.rows, self.records(), strict=True)
        ]
        return {
            "title": self.title,
            "caption": self.caption,
            "columns": [{key: getattr(each, key) for key in _DESCRIPTION} for each in self.fields],
            "rows": rows,
            "notes": list(self.notes),
        }

    def _texts(self, row: Row) -> tuple[str, ...]:
        return tuple(each.text(row.cells.get(each.name)) for each in self.shown)

    def _tones(self, row: Row) -> list[Tone]:
        cells = (row.cells.get(each.name) for each in self.shown)
        return [(isinstance(cell, Cell) and cell.tone) or row.tone for cell in cells]

    def _named(self) -> list[tuple[Row, tuple[str, ...], str]]:
        """Rows with their texts and groups; what is behind the strategy of a case heads a group."""
        rows = [(row, self._texts(row), row.group) for row in self.rows]
        if self.shown[0].name != "case_name" or any(row.group for row in self.rows):
            return rows
        named = [(row, *_split_name(row, texts)) for row, texts, _ in rows]
        return [each for same in grouped(named, lambda each: each[2]).values() for each in same]

    def _reasons(self, row: Row) -> dict[str, str]:
        return {key: cell.reason for key, cell in row.cells.items() if isinstance(cell, Cell) and cell.reason}


def _split_name(row: Row, texts: tuple[str, ...]) -> tuple[tuple[str, ...], str]:
    """Texts of a row of a case with its strategy alone as its name, and the rest of the case's name."""
    name, strategy = one_line(str(row.value("case_name"))), one_line(str(row.value("strategy")))
    if not name.startswith(f"{strategy}/"):
        return texts, ""
    mark = re.search(r"\[[^\[\]]*\]$", texts[0])
    return (strategy + (mark[0] if mark else ""), *texts[1:]), name.removeprefix(f"{strategy}/")


def _plain(value: Value) -> Value:
    # JSON has no word for what is infinite or no number
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _digits(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
