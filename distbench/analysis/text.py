"""Foreign text made fit to be shown: names, reasons and logs come from suites, models and programs."""

from __future__ import annotations

import re
from collections.abc import Sequence

# escape sequences whole; then what is left of control characters, marks that turn the writing
# direction, and halves of surrogate pairs, which no encoding can write
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b.?", re.DOTALL)
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def plain(text: str) -> str:
    """Return *text* without what a terminal or a browser would act on; line ends and tabs stay."""
    return _CONTROLS.sub("", _ESCAPES.sub("", text))


def one_line(text: str, limit: int = 300) -> str:
    """Return the first line of *text* that says something, *limit* characters at most."""
    if text.isascii() and text.isprintable():
        # nearly all names are that, and a page asks for a million of them
        return shorten(" ".join(text.split()), limit)
    lines = (" ".join(line.split()) for line in plain(text).splitlines())
    return shorten(next((line for line in lines if line), ""), limit)


def shorten(text: str, limit: int) -> str:
    """Return *text* with its middle left out if it is longer than *limit*: names differ at the end."""
    if len(text) <= limit:
        return text
    tail = (limit - 1) // 2
    return f"{text[: limit - 1 - tail]}…{text[len(text) - tail :]}"


def listed(names: Sequence[str], most: int = 6) -> str:
    """Return *names* as a list in a sentence, cut after *most* with the number of the others."""
    left = len(names) - most
    return ", ".join(names[:most]) + (f" and {left} more" if left > 0 else "")
