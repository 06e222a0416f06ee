"""Sentences folded into lines, never inside a command or a path: those are copied and pasted."""

from __future__ import annotations

import re
import textwrap

# a command, its options each with one value, names in capitals that stand for something, and paths
_UNBREAKABLE = re.compile(
    r"distbench [a-z]+(?: (?:--?[a-z][\w-]*(?:[ =][^\s,;)']+)?|[A-Z][A-Z_]+|'[^']*'|[^\s']*[/*=][^\s']*))*"
)
_PLACEHOLDER = "\0"


def wrap_text(text: str, width: int, *, first_indent: str = "", indent: str = "") -> list[str]:
    """Lines of *text*, *width* characters wide but for a longer command or path.

    Args:
        first_indent: What the first line begins with.
        indent: What all others begin with.
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
