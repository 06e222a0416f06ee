"""Output to the terminal. Names come from suites and scripts, so control characters are removed."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

import typer

from distbench.cli.colour import alarming, shown
from distbench.core.errors import ContentError, DistbenchError, SuiteError
from distbench.core.text import plain
from distbench.tables.line_wrapping import folded

_held: ContextVar[list[str] | None] = ContextVar("_held", default=None)
UNCHECKED = 3
"""Exit code of a run in which what was asked to be judged could not be: as ``gate``'s, which can't tell."""


def say(text: str = "") -> None:
    """Print *text*; once the reader has gone (``| head``), print nothing and continue."""
    _print(_held.get() or [])
    try:
        typer.echo(shown(text))
    except BrokenPipeError:
        drop_output()


def drop_output() -> None:
    """Have what is still to be printed on stdout lead nowhere, for nobody reads it.

    Otherwise Python waits for a reader when it ends.
    """
    # none, if something in this process reads it
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say_json(data: Any) -> None:
    """Print *data* as JSON on one line; indenting ten thousand cases takes seconds."""
    say(json.dumps(data))


def complain(error: DistbenchError | str) -> None:
    """Print an error on stderr, one line per mistake."""
    mistakes = error.mistakes if isinstance(error, SuiteError) else str(error).splitlines()
    for mistake in mistakes:
        # a command to be pasted keeps each space of the paths in it
        line = re.sub(r"\s", " ", plain(str(mistake))).strip()
        typer.echo(f"{alarming('distbench: error:')} {line}", err=True)


def note(text: str) -> None:
    """Print a remark on stderr, apart from the output of ``--json``."""
    held = _held.get()
    if held is None:
        typer.echo(plain(text), err=True)
    else:
        held.append(text)


@contextmanager
def remarks_before_output() -> Iterator[None]:
    """Hold remarks back until the first output, or the end.

    Where what was read turns out to be damaged, it is read again, which makes the remarks again: those of the
    first time are dropped.
    """
    held: list[str] = []
    token = _held.set(held)
    try:
        yield
    except ContentError:
        held.clear()
        raise
    finally:
        _held.reset(token)
        _print(held)


def _print(held: list[str]) -> None:
    for text in held:
        typer.echo(plain(text), err=True)
    held.clear()


def width() -> int:
    """Columns of the terminal; 80 if there is none."""
    return max(40, shutil.get_terminal_size((80, 24)).columns)


def wrapped(text: str, indent: int, hanging: int = 0) -> str:
    """*text* wrapped to the terminal's width and indented."""
    return "\n".join(folded(plain(text), width(), first=" " * indent, later=" " * (indent + hanging)))


def columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """*rows* as lines with aligned columns; the last column is wrapped."""
    shown = [[plain(cell) for cell in row] for row in rows]
    sizes = [max(map(len, column)) for column in zip(*shown, strict=True)]
    for *cells, last in shown:
        lead = "".join(f"{cell:<{size}}  " for cell, size in zip(cells, sizes, strict=False))
        indent, room = " " * len(lead), max(width(), len(lead) + 20)
        yield "\n".join(folded(last, room, first=lead, later=indent) or [lead.rstrip()])
