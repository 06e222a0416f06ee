"""A table with sentences above it as a piece of HTML, for the output of a notebook's cell."""

from __future__ import annotations

from collections.abc import Sequence

from distbench.report import html
from distbench.tables.table import Table

_MAX_ROWS = 80
"""Maximum number of rows that are shown; a data frame has all."""


def fragment(table: Table, sentences: Sequence[str] = ()) -> str:
    """HTML of *sentences* and *table*, without scripts and with no style but that of the page around it."""
    return html.render_static("fragment.html", table=table, sentences=sentences, most_rows=_MAX_ROWS)
