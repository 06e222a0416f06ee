"""Foreign text in Markdown and CSV, escaped so that it stays text.

Names come from suites and scripts: when posted they must not become markup, in a spreadsheet not formulas.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Any

from distbench.core.text import one_line

PERFETTO_URL = "https://ui.perfetto.dev"
"""Viewer of traces: the only address in a sentence that a page turns into a link."""
_MAX_LENGTH = 300
# a foreign name must not make markup, mention a person, or link an address or an issue
_MARKDOWN_SYNTAX = re.compile(r'[\\`*_\[\]<>|~&@#$]|:(?=//)|!(?=\d)|%(?=["\w])|(?<=www)\.')

# same as in the page's script; a number may begin with a sign
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def escape_markdown(text: str) -> str:
    """Escape foreign *text* so that Markdown shows it unchanged, on one line."""
    # an entity, not a backslash: mentions and addresses are detected after backslashes are removed
    return _MARKDOWN_SYNTAX.sub(lambda found: f"&#{ord(found[0])};", one_line(text, _MAX_LENGTH))


def bullets(sentences: Sequence[str]) -> str:
    """Foreign *sentences* as a list."""
    return "\n".join(f"- {escape_markdown(sentence)}" for sentence in sentences)


def details(title: str, content: str) -> str:
    """*content* in a collapsible block; empty if there is none. Markdown in it needs the empty lines."""
    return f"<details><summary>{title}</summary>\n\n{content}\n\n</details>" if content else ""


def join_blocks(*blocks: str) -> str:
    """Join *blocks* with empty lines; empty blocks are left out."""
    return "\n\n".join(block for block in blocks if block)


def write_csv(rows: Iterable[Sequence[Any]], text: Callable[[Any], str] = str) -> str:
    """*rows* as CSV, each value formatted by *text*; None is empty.

    Text that starts like a formula gets an apostrophe in front, unless it is a number.
    """
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerows([_cell(value, text) for value in row] for row in rows)
    return lines.getvalue().removesuffix("\n")


def _cell(value: Any, text: Callable[[Any], str]) -> str:
    shown = "" if value is None else text(value)
    return (
        f"'{shown}" if shown.startswith(_FORMULA) and not isinstance(value, int | float | Decimal) else shown
    )
