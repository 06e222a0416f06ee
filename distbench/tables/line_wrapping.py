"""Sentences folded into lines, never inside a command or a path: those are copied and pasted."""

from __future__ import annotations

import re
import textwrap

# a command, its options each with one value, names in capitals that stand for something, and paths
_COMMAND = re.compile(
    r"distbench [a-z]+(?: (?:--?[a-z][\w-]*(?:[ =][^\s,;)']+)?|[A-Z][A-Z_]+|'[^']*'|[^\s']*[/*=][^\s']*))*"
)
_KEPT = "\0"


def folded(text: str, width: int, *, first: str = "", later: str = "") -> list[str]:
    """Lines of *text*, *width* characters wide but for a longer command or path.

    Args:
        first: What the first line begins with.
        later: What all others begin with.
    """
    kept = _COMMAND.sub(lambda match: match[0].replace(" ", _KEPT), text)
    lines = textwrap.wrap(
        kept,
        width,
        initial_indent=first,
        subsequent_indent=later,
        break_on_hyphens=False,
        break_long_words=False,
    )
    return [line.replace(_KEPT, " ") for line in lines]
