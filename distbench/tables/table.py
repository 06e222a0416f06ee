"""A typed table: what people read and what programs get are rendered from the same cells.

Text for the terminal, Markdown for comments, cells for the page, JSON and CSV; SQL tables are made of
``Table.records`` too. A number that is not known is ``ABSENT`` wherever people read it, and null or empty
where programs do, with its reason in JSON.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from distbench.core.grouping import group_by
from distbench.core.text import one_line
from distbench.core.units import MISSING_TEXT, format_value
from distbench.tables.csv_text import write_csv
from distbench.tables.emphasis import Emphasis, Painter, no_color
from distbench.tables.line_wrapping import wrap_text
from distbench.tables.markdown_text import escape_markdown
from distbench.tables.text_table import TextRow, layout_lines

CellValue = str | int | float | bool | None
CellMapping = Mapping[str, "CellValue | TableCell"]
PERCENT = "{:.1%}".format
"""Format of a fraction."""

_LONGEST_CELL = 300
_DESCRIPTION = ("name", "heading", "type", "unit", "better", "doc")
_ARROWS = {"higher": " ↑", "lower": " ↓", None: ""}


@dataclass(frozen=True)
class TableCell:
    """A value that is shown in other words than its column's format gives, or that is absent for a reason."""

    value: CellValue
    text: str = ""
    """What people read; empty: by the format of the column."""
    reason: str = ""
    """Why *value* is None."""
    emphasis: Emphasis = ""
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

    def text(self, value: CellValue | TableCell) -> str:
        """What people read in a cell of this column."""
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
    """A sentence in place of all cells but the first, for people."""
    emphasis: Emphasis = ""
    """Of all cells that have none of their own."""

    def value(self, name: str) -> CellValue:
        """The value of a column, None if it is absent."""
        cell = self.cells.get(name)
        return cell.value if isinstance(cell, TableCell) else cell


@dataclass(frozen=True)
class Table:
    """A table with a title, what its columns mean, and what to know of its numbers."""

    title: str
    caption: str
    """What the numbers are, with the direction of better."""
    fields: tuple[Field, ...]
    """The first column that people see holds the names of the rows."""
    rows: tuple[TableRow, ...]
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
            yield self._row_texts(row)

    def select_columns(self, *names: str) -> Table:
        """The same rows with these columns alone."""
        fields = {each.name: each for each in self.fields}
        return replace(self, fields=tuple(fields[name] for name in names))

    def records(self) -> list[dict[str, CellValue]]:
        """Rows for programs: every column by its name, None where it is absent."""
        return [{each.name: _plain(row.value(each.name)) for each in self.fields} for row in self.rows]

    def to_text(self, width: int, paint: Painter = no_color) -> str:
        """Lines of plain text, *width* characters wide where the cells allow it."""
        lines = [*([self.title] if self.title else []), *wrap_text(self.caption, width), ""]
        lines += self.to_text_lines(width, paint) if self.rows else ["Nothing to show."]
        for note in self.notes:
            lines += ["", *wrap_text(note, width)]
        return "\n".join(lines)

    def to_text_lines(self, width: int, paint: Painter = no_color) -> list[str]:
        """The headings and the rows as lines."""
        left = [each.type == "varchar" for each in self.shown]
        lines = [
            TextRow(name_and_others, self._row_emphasis(row), group, row.sentence)
            for row, name_and_others, group in self._text_rows()
        ]
        return layout_lines(self.headings, lines, left, width, paint)

    def to_markdown(self) -> str:
        """A table of Markdown; foreign text in it makes no markup. Empty without rows."""
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
        """Names of the columns and every digit of their values; what is absent is empty."""
        rows = [list(row.values()) for row in self.records()]
        return write_csv([[each.name for each in self.fields], *rows], _digits)

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

    def _row_texts(self, row: TableRow) -> tuple[str, ...]:
        return tuple(each.text(row.cells.get(each.name)) for each in self.shown)

    def _row_emphasis(self, row: TableRow) -> list[Emphasis]:
        cells = (row.cells.get(each.name) for each in self.shown)
        return [(isinstance(cell, TableCell) and cell.emphasis) or row.emphasis for cell in cells]

    def _text_rows(self) -> list[tuple[TableRow, tuple[str, ...], str]]:
        """Rows with their texts and groups; what is behind the strategy of a case heads a group."""
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
    """Texts of a row of a case with its strategy alone as its name, and the rest of the case's name."""
    name, strategy = one_line(str(row.value("case_name"))), one_line(str(row.value("strategy")))
    if not name.startswith(f"{strategy}/"):
        return texts, ""
    mark = re.search(r"\[[^\[\]]*\]$", texts[0])
    return (strategy + (mark[0] if mark else ""), *texts[1:]), name.removeprefix(f"{strategy}/")


def _plain(value: CellValue) -> CellValue:
    # JSON has no word for what is infinite or no number
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _digits(value: CellValue) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
