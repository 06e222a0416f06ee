"""Sanitize, shorten, list and wrap text of suites, models and logs."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Sequence
from typing import IO

# whole escape sequences; then remaining control characters, Unicode's line separators, marks that
# change the writing direction, noncharacters, and lone surrogates, which no encoding can write
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b.?", re.DOTALL)
_CONTROLS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufdd0-\ufdef\ud800-\udfff]"
)
_ERROR_LINE = re.compile(r"\b(error|fatal|ld): |No space left on device", re.IGNORECASE)
# lines of the compiler driver and of ninja that only report a failed part
_BUILD_SUMMARY = re.compile(r"collect2: |ninja: build stopped|FAILED: ")

# a command, its options each with one value, names in capitals that stand for something, and paths
_UNBREAKABLE = re.compile(
    r"distbench [a-z]+(?: (?:--?[a-z][\w-]*(?:[ =][^\s,;)']+)?|[A-Z][A-Z_]+|'[^']*'|[^\s']*[/*=][^\s']*))*"
)
_PLACEHOLDER = "\0"


def strip_control_characters(text: str) -> str:
    """*text* without characters that a terminal or browser would act on; line ends and tabs stay."""
    return _CONTROLS.sub("", _ESCAPES.sub("", text))


def one_line(text: str, limit: int = 300) -> str:
    """First non-empty line of *text*, at most *limit* characters."""
    if text.isascii() and text.isprintable():
        # nearly all names are like that, and a page needs a million of them
        return shorten(" ".join(text.split()), limit)
    lines = (" ".join(line.split()) for line in strip_control_characters(text).splitlines())
    return shorten(next((line for line in lines if line), ""), limit)


def escape_openmetrics_label(text: str) -> str:
    """*text* as the value of a label (openmetrics.io, 1.0), in one line."""
    return one_line(text).replace("\\", "\\\\").replace('"', '\\"')


def shorten(text: str, limit: int) -> str:
    """*text* without its middle if it is longer than *limit*: names differ at the end."""
    if len(text) <= limit:
        return text
    tail = (limit - 1) // 2
    return f"{text[: limit - 1 - tail]}…{text[len(text) - tail :]}"


def join_limited(names: Sequence[str], limit: int = 6) -> str:
    """*names* as a list in a sentence: the first *limit*, and the number of the others."""
    left = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {left} more" if left > 0 else "")


def truncate_middle(text: str, limit: int, whole: str) -> str:
    """*text* without its middle if it is longer than *limit* characters.

    Args:
        whole: Text that says where the full text is.
    """
    if len(text) <= limit:
        return text
    half = limit // 2
    left_out = f"{len(text) - 2 * half:,} of {len(text):,} characters omitted; {whole}"
    return f"{text[:half]} … [{left_out}] … {text[-half:]}"


def compiler_error_line(text: str) -> str:
    """Line with the error in *text*, an error message that contains a compiler's output.

    The text before the output is kept. A text without such a line is returned as it is.
    """
    lines = [line.strip() for line in text.splitlines()]
    telling = [line for line in lines if _ERROR_LINE.search(line) and not _BUILD_SUMMARY.match(line)]
    # the first line names what was built; it may hold the first line of the output as well
    if len(lines) < 2 or not telling:
        return text
    return telling[0] if telling[0] == lines[0] else f"{lines[0].partition(': ')[0]}: {telling[0]}"


def wrap_text(text: str, width: int, *, first_indent: str = "", indent: str = "") -> list[str]:
    """Wrap *text* to lines of *width* characters, or longer for a long command or path.

    Args:
        first_indent: Start of the first line.
        indent: Start of all other lines.
    """
    kept = _UNBREAKABLE.sub(lambda match: match[0].replace(" ", _PLACEHOLDER), text)
    lines = textwrap.wrap(
        kept,
        width,
        initial_indent=first_indent,
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
    )
    return [line.replace(_PLACEHOLDER, " ") for line in lines]


def supports_colour(stream: IO[str]) -> bool:
    """True if output to *stream* may have colours (https://no-color.org)."""
    variables = os.environ
    wanted = not variables.get("NO_COLOR") and not variables.get("CI") and variables.get("TERM") != "dumb"
    return wanted and stream.isatty()
