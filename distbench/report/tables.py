"""A table for people, the same in the terminal and on the page."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

_LEAST_NAME = 12


@dataclass(frozen=True)
class Table:
    """One view of a run: what to see in it, and a row for each case or part of a case."""

    name: str
    """Word of ``distbench show --view``, and anchor on the page."""
    title: str
    caption: str
    """What the numbers are and what to see in them; with the direction of better."""
    headings: tuple[str, ...]
    """The first stands over the names of the rows."""
    rows: tuple[tuple[str, ...], ...]
    """A cell for each heading, ``–`` where there is no number; or one cell alone, over what follows."""
    notes: tuple[str, ...] = ()
    """Sentences below the table: findings, and why numbers are missing."""


def as_text(table: Table, width: int) -> str:
    """Return *table* as lines of plain text, *width* characters wide at most where its cells allow."""
    lines = [table.title, *textwrap.wrap(table.caption, width), ""]
    lines += _rows(table, width) if table.rows else ["Nothing to show."]
    for note in table.notes:
        lines += ["", *textwrap.wrap(note, width, break_on_hyphens=False)]
    return "\n".join(lines)


def _rows(table: Table, width: int) -> list[str]:
    every = [table.headings, *(row for row in table.rows if len(row) > 1)]
    sizes = [max(len(row[column]) for row in every) for column in range(len(table.headings))]
    numbers = sum(sizes[1:]) + 2 * len(sizes[1:])
    sizes[0] = min(sizes[0], max(_LEAST_NAME, width - numbers))
    return [line for row in (table.headings, *table.rows) for line in _lines(row, sizes)]


def _lines(cells: Sequence[str], sizes: Sequence[int]) -> list[str]:
    """Return a row as one line, or as two where its name is too long: cut names would be alike."""
    if len(cells) == 1:
        return [cells[0]]
    name, *rest = cells
    numbers = [f"{cell:>{size}}" for cell, size in zip(rest, sizes[1:], strict=True)]
    head = [] if len(name) <= sizes[0] else [name]
    return [*head, "  ".join([f"{'' if head else name:<{sizes[0]}}", *numbers]).rstrip()]
