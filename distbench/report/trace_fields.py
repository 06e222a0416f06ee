"""Columns that the tables of traces share."""

from __future__ import annotations

from dataclasses import replace

from distbench.core.text import shorten
from distbench.core.units import format_number, format_percent
from distbench.tables.table import Field, Table

MOST_ROWS = 40
"""Rows that people see of a table; there may be thousands of kernels."""
_NAME_LENGTH = 60
RANK = Field("rank", "rank", "Global rank.", type="bigint", format=str)
SHARE = Field("share", "share", "Part of the step, from 0 to 1.", format=format_percent)


def format_ms(seconds: float) -> str:
    """Number of *seconds* in ms."""
    return format_number(seconds * 1e3)


def seconds_field(name: str, heading: str, doc: str) -> Field:
    """Field of seconds, which people see in ms."""
    return Field(name, heading, doc, "s", "lower", format=format_ms)


def name_field(name: str, heading: str, doc: str) -> Field:
    """Field of names in C++, which may be longer than a line."""
    return Field(name, heading, doc, type="varchar", format=lambda text: shorten(text, _NAME_LENGTH))


def largest_rows(table: Table) -> Table:
    """*table* as people see it: with its first rows, and a note on how many it leaves out."""
    left_out = len(table.rows) - MOST_ROWS
    if left_out <= 0:
        return table
    note = f"{left_out:,} smaller rows are left out; --csv and --json have them."
    return replace(table, rows=table.rows[:MOST_ROWS], notes=(*table.notes, note))
