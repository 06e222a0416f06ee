"""Wrap sentences without breaking commands or paths, which people copy and paste."""

from __future__ import annotations

import re
import textwrap

# a command, its options each with one value, names in capitals that stand for something, and paths
_UNBREAKABLE = re.compile(
    r"distbench [a-z]+(?: (?:--?[a-z][\w-]*(?:[ =][^\s,;)']+)?|[A-Z][A-Z_]+|'[^']*'|[^\s']*[/*=][^\s']*))*"
)
_PLACEHOLDER = "\0"


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
