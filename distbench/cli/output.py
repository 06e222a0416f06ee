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
from typing import TYPE_CHECKING, Any

import typer

from distbench.core.errors import DistbenchError, RecordContentError, SuiteError
from distbench.core.text import strip_control_characters, supports_colour, wrap_text

if TYPE_CHECKING:
    from distbench.tables.text_table import Emphasis

# noncharacters, which Unicode reserves for internal use: text from elsewhere can't act by them
_STYLE_MARKERS: dict[Emphasis, str] = {
    "best": "\ufdd0",
    "good": "\ufdd1",
    "bad": "\ufdd2",
    "doubtful": "\ufdd3",
}
_RESET_MARKER = "\ufdef"
_ANSI_CODES = {
    "\ufdd0": typer.style("", bold=True, reset=False),
    "\ufdd1": typer.style("", fg="green", reset=False),
    "\ufdd2": typer.style("", fg="red", reset=False),
    "\ufdd3": typer.style("", fg="yellow", reset=False),
    _RESET_MARKER: typer.style(""),
}
_pending_notes: ContextVar[list[str] | None] = ContextVar("_held", default=None)
EXIT_UNCHECKED = 3
"""Exit code of a run without any measured case, or without a requested judgement; that of an inconclusive
gate."""


def apply_style(text: str, tone: Emphasis) -> str:
    """Put marks around *text* that ``render_styles`` turns into a style, if standard output has colours."""
    return (
        f"{_STYLE_MARKERS[tone]}{text}{_RESET_MARKER}"
        if tone and text and supports_colour(sys.stdout)
        else text
    )


def render_styles(text: str) -> str:
    """Turn the marks in *text* into terminal codes, and remove all other control characters."""
    return "".join(
        _ANSI_CODES.get(part) or strip_control_characters(part)
        for part in re.split("([\ufdd0-\ufdef])", text)
    )


def error_style(text: str) -> str:
    """*text* in red, if standard error has colours."""
    return typer.style(text, fg="red", bold=True) if supports_colour(sys.stderr) else text


def print_text(text: str = "") -> None:
    """Print *text*; once the reader has gone (``| head``), print nothing and continue."""
    _print(_pending_notes.get() or [])
    try:
        typer.echo(render_styles(text))
    except BrokenPipeError:
        discard_stdout()


def discard_stdout() -> None:
    """Redirect further output on stdout to nowhere, since nobody reads it.

    Otherwise Python waits for a reader when it ends.
    """
    # none, if something in this process reads it
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_json(data: Any) -> None:
    """Print *data* as JSON on one line; indenting ten thousand cases takes seconds."""
    print_text(json.dumps(data))


def print_error(error: DistbenchError | str) -> None:
    """Print an error on stderr, one line per mistake."""
    mistakes = error.mistakes if isinstance(error, SuiteError) else str(error).splitlines()
    for mistake in mistakes:
        # keep spaces, so that commands can be copied
        line = re.sub(r"\s", " ", strip_control_characters(str(mistake))).strip()
        typer.echo(f"{error_style('distbench: error:')} {line}", err=True)


def print_note(text: str) -> None:
    """Print a remark on stderr, separate from the output of ``--json``."""
    held = _pending_notes.get()
    if held is None:
        typer.echo(strip_control_characters(text), err=True)
    else:
        held.append(text)


def print_warning(text: str) -> None:
    """Print a warning on stderr, as a remark."""
    print_note(f"distbench: warning: {text}")


@contextmanager
def notes_before_output() -> Iterator[None]:
    """Hold remarks back until the first output, or the end.

    If a file turns out to be damaged, everything is read again, which repeats the remarks: those of the first
    time are dropped.
    """
    held: list[str] = []
    token = _pending_notes.set(held)
    try:
        yield
    except RecordContentError:
        held.clear()
        raise
    finally:
        _pending_notes.reset(token)
        _print(held)


def _print(held: list[str]) -> None:
    for text in held:
        typer.echo(strip_control_characters(text), err=True)
    held.clear()


def terminal_width() -> int:
    """Columns of the terminal; 80 if there is none."""
    return max(40, shutil.get_terminal_size((80, 24)).columns)


def wrap_to_terminal(text: str, indent: int, hanging: int = 0) -> str:
    """*text* wrapped to the terminal's width and indented."""
    return "\n".join(
        wrap_text(
            strip_control_characters(text),
            terminal_width(),
            first_indent=" " * indent,
            indent=" " * (indent + hanging),
        )
    )


def align_columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """*rows* as lines with aligned columns; the last column is wrapped."""
    shown = [[strip_control_characters(cell) for cell in row] for row in rows]
    sizes = [max(map(len, column)) for column in zip(*shown, strict=True)]
    for *cells, last in shown:
        lead = "".join(f"{cell:<{size}}  " for cell, size in zip(cells, sizes, strict=False))
        indent, room = " " * len(lead), max(terminal_width(), len(lead) + 20)
        yield "\n".join(wrap_text(last, room, first_indent=lead, indent=indent) or [lead.rstrip()])
