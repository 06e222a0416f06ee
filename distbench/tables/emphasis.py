"""Emphasis of table cells and text in a terminal: the best, a problem, a doubt."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

Emphasis = Literal["", "best", "good", "bad", "doubtful"]
"""best: recommended; good and bad: a change, a failure, a verdict; doubtful: from a noisy machine."""
CHANGE_EMPHASIS: Mapping[str, Emphasis] = {"better": "good", "worse": "bad"}
"""Emphasis of the words for a change."""
Painter = Callable[[str, Emphasis], str]
"""Function that renders a text with an emphasis, without changing its width."""


def no_color(text: str, _: Emphasis) -> str:
    """*text* without emphasis: for files, pipes and terminals without colors."""
    return text
