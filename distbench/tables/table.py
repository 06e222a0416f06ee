"""Typed tables with text, Markdown, CSV and JSON output from the same cells.

Text is for the terminal, Markdown for comments, cells for the page; SQL tables are made from
``Table.records`` too. An unknown number is ``MISSING_TEXT`` for people; for programs it is null or empty, in
JSON with its reason.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from distbench.core.grouping import group_by
from distbench.core.text import one_line, wrap_text
from distbench.core.units import MISSING_TEXT, format_value
from distbench.tables.foreign_text import escape_markdown, write_csv
from distbench.tables.text_table import Emphasis, Painter, TextRow, layout_lines, no_color

CellValue = str | int | float | bool | None
CellMapping = Mapping[str, "CellValue | TableCell"]
PERCENT = "{:.1%}".format
"""Format of a fraction."""

_DESCRIPTION = ("name", "heading", "type", "unit", "better", "doc")
_ARROWS = {"higher": " ↑", "lower": " ↓", None: ""}


@dataclass(frozen=True)
class TableCell:
    """A value with a text other than its column's format, or absent with a reason."""

    value: CellValue
    text: str = ""
    """Text for people; empty: by the format of the column."""
    reason: str = ""
    """Reason why the value is None."""
    emphasis: Emphasis = ""
    """Used where text has colors; empty: that of the row."""


@dataclass(frozen=True)
class Field:
    """One column."""

    name: str
    """Name in JSON, CSV and SQL."""
    heading: str
    """Heading for people; empty: only programs see the column."""
    doc: str = ""
    unit: str = ""
    """``s``, ``B``, ``tokens/s`` or empty, as in records."""
    better: Literal["higher", "lower"] | None = None
    """Direction of better."""
    type: Literal["varchar", "double", "bigint", "boolean"] = "double"
    """Type in SQL; text is aligned to the left."""
    format: Callable[[Any], str] | None = None
    """Format of a known value; None: by its unit."""

    def text(self, value: CellValue | TableCell) -> str:
        """Text of a cell of this column for people."""
        cell = value if isinstance(value, TableCell) else TableCell(value)
        if cell.text or cell.value is None:
            return cell.text or MISSING_TEXT
        if self.format:
            return self.format(cell.value)
        if isinstance(cell.value, bool):
            return "yes" if cell.value else "no"
        return one_line(cell.value) if isinstance(cell.value, str) else format_value(cell.value, self.unit)


@dataclass(frozen=True)
class TableRow:
    """One row; a column without a cell is absent."""

    cells: CellMapping
    group: str = ""
    """Heading above this row and those that follow with the same."""
    sentence: str = ""
    """Sentence that replaces all cells but the first, for people."""
    emphasis: Emphasis = ""
    """Emphasis of all cells that have none of their own."""

    def value(self, name: str) -> CellValue:
        """Value of a column, None if absent."""
        cell = self.cells.get(name)
        return cell.value if isinstance(cell, TableCell) else cell


@dataclass(frozen=True)
class Table:
    """A table with a title, the meaning of its columns, and notes."""

    title: str
    caption: str
    """Meaning of the numbers, with the direction of better."""
    fields: tuple[Field, ...]
    """Columns; the first one that people see holds the names of the rows."""
    rows: tuple[TableRow, ...]
    notes: tuple[str, ...] = ()
    """Sentences below the table: findings, and reasons for missing numbers."""

    @property
    def shown(self) -> tuple[Field, ...]:
        """Columns for people."""
        return tuple(each for each in self.fields if each.heading)

    @property
    def headings(self) -> tuple[str, ...]:
        """Headings of the columns for people."""
        return tuple(each.heading for each in self.shown)

    def texts(self) -> Iterator[tuple[str, ...]]:
        """Rows as texts for people; a tuple of one is the heading of the group that follows."""
        group = ""
        for row in self.rows:
            if row.group != group:
                group = row.group
                yield (group,)
            yield self._row_texts(row)

    def select_columns(self, *names: str) -> Table:
        """The table with only the columns *names*."""
        fields = {each.name: each for each in self.fields}
        return replace(self, fields=tuple(fields[name] for name in names))

    def records(self) -> list[dict[str, CellValue]]:
        """Rows for programs: every column by its name, None if absent."""
        return [{each.name: _plain(row.value(each.name)) for each in self.fields} for row in self.rows]

    def to_text(self, width: int, paint: Painter = no_color) -> str:
        """Render as plain text, *width* characters wide if the cells allow it."""
        lines = [*([self.title] if self.title else []), *wrap_text(self.caption, width), ""]
        lines += self.to_text_lines(width, paint) if self.rows else ["Nothing to show."]
        for note in self.notes:
            lines += ["", *wrap_text(note, width)]
        return "\n".join(lines)

    def to_text_lines(self, width: int, paint: Painter = no_color) -> list[str]:
        """Headings and rows as lines."""
        left = [each.type == "varchar" for each in self.shown]
        lines = [
            TextRow(name_and_others, self._row_emphasis(row), group, row.sentence)
            for row, name_and_others, group in self._text_rows()
        ]
        return layout_lines(self.headings, lines, left, width, paint)

    def to_markdown(self) -> str:
        """Render as a Markdown table with escaped foreign text; empty without rows."""
        ruled = ["---" if each.type == "varchar" else "---:" for each in self.shown]
        headings = [escape_markdown(each.heading) + _ARROWS[each.better] for each in self.shown]
        lines = [headings, ["---", *ruled[1:]]]
        for cells in self.texts():
            texts = (
                [f"**{escape_markdown(cells[0])}**"]
                if len(cells) == 1
                else [escape_markdown(text) for text in cells]
            )
            lines.append(texts + [""] * (len(headings) - len(texts)))
        return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) if self.rows else ""

    def to_csv(self) -> str:
        """Render as CSV: names of the columns and all digits of their values; absent values are empty."""
        rows = [list(row.values()) for row in self.records()]
        return write_csv([[each.name for each in self.fields], *rows], _digits)

    def to_json(self) -> dict[str, Any]:
        """Columns, rows by the names of the columns, reasons for absent values, and notes."""
        rows = [
            # a plug-in's table may have a column of that name
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

    def _row_texts(self, row: TableRow) -> tuple[str, ...]:
        return tuple(each.text(row.cells.get(each.name)) for each in self.shown)

    def _row_emphasis(self, row: TableRow) -> list[Emphasis]:
        cells = (row.cells.get(each.name) for each in self.shown)
        return [(isinstance(cell, TableCell) and cell.emphasis) or row.emphasis for cell in cells]

    def _text_rows(self) -> list[tuple[TableRow, tuple[str, ...], str]]:
        """Rows with their texts and groups; the name of a case after its strategy is the group heading."""
        rows = [(row, self._row_texts(row), row.group) for row in self.rows]
        if self.shown[0].name != "case_name" or any(row.group for row in self.rows):
            return rows
        named = [(row, *_split_name(row, texts)) for row, texts, _ in rows]
        return [each for same in group_by(named, lambda each: each[2]).values() for each in same]

    def _reasons(self, row: TableRow) -> dict[str, str]:
        return {
            key: cell.reason for key, cell in row.cells.items() if isinstance(cell, TableCell) and cell.reason
        }


def _split_name(row: TableRow, texts: tuple[str, ...]) -> tuple[tuple[str, ...], str]:
    """Split a case row's name into the strategy, kept in its texts, and the rest."""
    name, strategy = one_line(str(row.value("case_name"))), one_line(str(row.value("strategy")))
    if not name.startswith(f"{strategy}/"):
        return texts, ""
    mark = re.search(r"\[[^\[\]]*\]$", texts[0])
    return (strategy + (mark[0] if mark else ""), *texts[1:]), name.removeprefix(f"{strategy}/")


def _plain(value: CellValue) -> CellValue:
    # JSON can't represent infinity and NaN
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _digits(value: CellValue) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
