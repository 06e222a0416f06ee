"""Terminal colours and bold, where supported and not disabled."""

from __future__ import annotations

import os
import re
import sys
from typing import IO

import typer

from distbench.core.text import strip_control_characters
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


def supports_colour(stream: IO[str]) -> bool:
    """True if output to *stream* may have colours (https://no-color.org)."""
    variables = os.environ
    wanted = not variables.get("NO_COLOR") and not variables.get("CI") and variables.get("TERM") != "dumb"
    return wanted and stream.isatty()


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
