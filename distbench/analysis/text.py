"""Foreign text made safe to show: names, reasons and logs come from suites, models and programs."""

from __future__ import annotations

import re
from collections.abc import Sequence

from distbench.core.case import Case

# whole escape sequences; then remaining control characters, marks that change the writing
# direction, noncharacters, and lone surrogates, which no encoding can write
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b.?", re.DOTALL)
_CONTROLS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufdd0-\ufdef\ud800-\udfff]"
)


def plain(text: str) -> str:
    """*text* without anything that a terminal or browser would act on; line ends and tabs stay."""
    return _CONTROLS.sub("", _ESCAPES.sub("", text))


def one_line(text: str, limit: int = 300) -> str:
    """First non-empty line of *text*, at most *limit* characters."""
    if text.isascii() and text.isprintable():
        # nearly all names are like that, and a page needs a million of them
        return shorten(" ".join(text.split()), limit)
    lines = (" ".join(line.split()) for line in plain(text).splitlines())
    return shorten(next((line for line in lines if line), ""), limit)


def shorten(text: str, limit: int) -> str:
    """*text* with its middle left out if it is longer than *limit*: names differ at the end."""
    if len(text) <= limit:
        return text
    tail = (limit - 1) // 2
    return f"{text[: limit - 1 - tail]}…{text[len(text) - tail :]}"


def listed(names: Sequence[str], most: int = 6) -> str:
    """*names* as a list in a sentence, cut after *most* with the number of the others."""
    left = len(names) - most
    return ", ".join(names[:most]) + (f" and {left} more" if left > 0 else "")


def short_names(cases: Sequence[Case]) -> dict[str, str]:
    """Label and the parts of the name that not all *cases* share, by case id."""
    common = set(shared_parts(cases))
    return {
        case.id: "/".join([one_line(case.label), *(part for part in parts(case) if part not in common)])
        for case in cases
    }


def shared_parts(cases: Sequence[Case]) -> list[str]:
    """Parts after the label, such as ``ws2`` or ``fp32``, that are in every name."""
    others = [set(parts(case)) for case in cases[1:]]
    return [part for part in parts(cases[0]) if all(part in other for other in others)] if cases else []


def parts(case: Case) -> list[str]:
    """Parts of the name of *case* after the label."""
    rest = case.name.removeprefix(case.label).lstrip("/")
    return [text for part in rest.split("/") if (text := one_line(part))]
