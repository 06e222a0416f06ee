"""Words to the terminal. Names come from suites and scripts: nothing in them may act on it."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

import typer

from distbench.analysis.text import plain
from distbench.errors import DistbenchError, SuiteError


def say(text: str = "") -> None:
    """Print *text*; once nobody reads any more (``| head``), print nothing and go on."""
    try:
        typer.echo(plain(text))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say_json(data: Any) -> None:
    """Print *data* as JSON on one line: indenting ten thousand cases takes seconds."""
    say(json.dumps(data))


def complain(error: DistbenchError | str) -> None:
    """Print an error on stderr, one line for each mistake."""
    found = error.mistakes if isinstance(error, SuiteError) else str(error).splitlines()
    for mistake in found:
        typer.echo(f"distbench: error: {' '.join(plain(str(mistake)).split())}", err=True)


def note(text: str) -> None:
    """Print a remark on stderr, where it does not get into ``--json``."""
    typer.echo(plain(text), err=True)


def width() -> int:
    """Return the columns to write for: the terminal's, or 80 where there is none."""
    return max(40, shutil.get_terminal_size((80, 24)).columns)


def wrapped(text: str, indent: int, hanging: int = 0) -> str:
    """Return *text* folded to the terminal, indented."""
    return textwrap.fill(
        plain(text),
        width(),
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + hanging),
        break_on_hyphens=False,
    )


def columns(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    """Yield *rows* as lines with the columns below each other; the last column is folded."""
    rows_shown = [[plain(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in rows_shown) for i in range(len(rows_shown[0]) - 1)] if rows else []
    for row in rows_shown:
        lead = "  ".join(cell.ljust(size) for cell, size in zip(row, widths, strict=False))
        room = max(20, width() - len(lead) - 2)
        last = textwrap.wrap(row[-1], room, break_on_hyphens=False) or [""]
        yield f"{lead}  {last[0]}".rstrip()
        yield from (f"{' ' * (len(lead) + 2)}{line}" for line in last[1:])
