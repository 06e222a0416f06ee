"""Render a table as lines of text: one line per row, in several blocks of columns if too wide."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.cells import cell_len

from distbench.core.text import shorten

_MIN_NAME_WIDTH = 12
_GAPS = (2, 1)
"""Spaces between columns; the wider ones if they fit."""

Emphasis = Literal["", "best", "good", "bad", "doubtful"]
"""best: recommended; good and bad: a change, a failure, a verdict; doubtful: from a noisy machine."""
CHANGE_EMPHASIS: Mapping[str, Emphasis] = {"better": "good", "worse": "bad"}
"""Emphasis of the words for a change."""
Painter = Callable[[str, Emphasis], str]
"""Function that renders a text with an emphasis, without changing its width."""


@dataclass(frozen=True)
class TextRow:
    """Texts of a row; the first cell is its name."""

    cells: Sequence[str]
    emphasis: Sequence[Emphasis]
    group: str = ""
    """Heading above this row and those that follow with the same."""
    sentence: str = ""
    """Sentence that replaces all cells but the first."""


@dataclass(frozen=True)
class _ColumnLayout:
    """Columns of a table and their widths."""

    sizes: Sequence[int]
    """Widths in terminal cells: an East Asian character takes two, a combining one none."""
    left: Sequence[bool]
    """True for columns aligned to the left."""
    width: int
    gap: int
    paint: Painter

    @property
    def blocks(self) -> list[list[int]]:
        """Columns of each block after the name, as many as fit.

        Text columns next to the name belong to it, and are in each block.
        """
        keys = list(itertools.takewhile(lambda i: self.left[i], range(1, len(self.sizes))))
        keys = keys if self._span(keys) <= self.width // 2 else []
        made = [[*keys]]
        for column in range(1 + len(keys), len(self.sizes)):
            if len(made[-1]) > len(keys) and self._span([*made[-1], column]) > self.width:
                made.append([*keys])
            made[-1].append(column)
        return made

    def _span(self, columns: Sequence[int]) -> int:
        return self.sizes[0] + sum(self.sizes[i] + self.gap for i in columns)

    def row(self, line: TextRow, columns: Sequence[int]) -> list[str]:
        """A row as one line, or as two if its name is too long: cut names would look alike."""
        name = self.paint(line.cells[0], line.emphasis[0])
        is_long = cell_len(line.cells[0]) > self.sizes[0]
        lead = "" if is_long else name
        parts = [lead + " " * (self.sizes[0] - (0 if is_long else cell_len(line.cells[0])))]
        for i in columns:
            space = " " * (self.sizes[i] - cell_len(line.cells[i]))
            shown = self.paint(line.cells[i], line.emphasis[i]) if line.cells[i] else ""
            parts.append(shown + space if self.left[i] else space + shown)
        return [*([name] if is_long else []), (" " * self.gap).join(parts).rstrip()]

    def sentence(self, line: TextRow) -> list[str]:
        """A name with a sentence next to it, wrapped once and then cut."""
        name, size = shorten(line.cells[0], self.sizes[0]), self.sizes[0]
        indent = " " * (size + self.gap)
        first, *later = textwrap.wrap(
            line.sentence, max(20, self.width - len(indent)), max_lines=2, placeholder=" …"
        ) or [""]
        texts = [self.paint(text, line.emphasis[0]) for text in (first, *later)]
        head = self.paint(name, line.emphasis[0]) + " " * (size - cell_len(name) + self.gap)
        return [head + texts[0], *(indent + text for text in texts[1:])]


def layout_lines(
    headings: Sequence[str], rows: Sequence[TextRow], left: Sequence[bool], width: int, paint: Painter
) -> list[str]:
    """Lay out headings and rows as lines, *width* characters wide if the cells allow it."""
    whole = [headings, *(row.cells for row in rows if not row.sentence)]
    sizes = [max(cell_len(cells[i]) for cells in whole) for i in range(len(headings))]
    names = max(cell_len(cells[0]) for cells in [headings, *(row.cells for row in rows)])
    rest = sum(sizes[1:])
    gap = next((gap for gap in _GAPS if names + rest + gap * len(sizes[1:]) <= width), _GAPS[0])
    # at least half of the width is for numbers
    sizes[0] = min(names, max(_MIN_NAME_WIDTH, width - rest - gap * len(sizes[1:]), width // 2))
    layout, head = _ColumnLayout(sizes, left, width, gap, paint), TextRow(headings, [""] * len(headings))
    lines: list[str] = []
    for number, columns in enumerate(layout.blocks):
        shown = [row for row in rows if not row.sentence] if number else rows
        lines += (
            ["", *_block(layout, head, shown, columns)] if lines else _block(layout, head, shown, columns)
        )
    return lines


def _block(
    layout: _ColumnLayout, head: TextRow, rows: Sequence[TextRow], columns: Sequence[int]
) -> list[str]:
    return [*layout.row(head, columns), *_rows(layout, rows, columns)]


def _rows(layout: _ColumnLayout, rows: Sequence[TextRow], columns: Sequence[int]) -> Iterator[str]:
    group, is_first = "", True
    for row in rows:
        if row.group != group:
            group = row.group
            yield from ([] if is_first else [""])
            yield shorten(group, layout.width)
        is_first = False
        yield from layout.sentence(row) if row.sentence else layout.row(row, columns)


def no_color(text: str, _: Emphasis) -> str:
    """*text* without emphasis: for files, pipes and terminals without colors."""
    return text
