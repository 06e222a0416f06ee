"""Colours and bold, where standard output is a terminal that has them and nobody has asked for none."""

from __future__ import annotations

import os
import re
import sys
from typing import IO

import typer

from distbench.core.text import plain
from distbench.tables.emphasis import Tone

# noncharacters, which Unicode keeps for use inside of a program: text from elsewhere can't act by them
_MARKS: dict[Tone, str] = {"best": "\ufdd0", "good": "\ufdd1", "bad": "\ufdd2", "doubtful": "\ufdd3"}
_END = "\ufdef"
_STARTS = {
    "\ufdd0": typer.style("", bold=True, reset=False),
    "\ufdd1": typer.style("", fg="green", reset=False),
    "\ufdd2": typer.style("", fg="red", reset=False),
    "\ufdd3": typer.style("", fg="yellow", reset=False),
    _END: typer.style(""),
}


def is_coloured(stream: IO[str]) -> bool:
    """Whether what is written to *stream* may have colours (https://no-color.org)."""
    variables = os.environ
    wanted = not variables.get("NO_COLOR") and not variables.get("CI") and variables.get("TERM") != "dumb"
    return wanted and stream.isatty()


def paint(text: str, tone: Tone) -> str:
    """*text* with marks that ``shown`` makes a colour of, if standard output has colours."""
    return f"{_MARKS[tone]}{text}{_END}" if tone and text and is_coloured(sys.stdout) else text


def shown(text: str) -> str:
    """*text* with its marks as a terminal acts on them, and without anything else that it would act on."""
    return "".join(_STARTS.get(part) or plain(part) for part in re.split("([\ufdd0-\ufdef])", text))


def alarming(text: str) -> str:
    """*text* in red, if standard error has colours."""
    return typer.style(text, fg="red", bold=True) if is_coloured(sys.stderr) else text
