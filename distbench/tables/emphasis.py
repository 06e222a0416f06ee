"""What a part of a text says before it is read, where a terminal shows it: the best, a problem, a doubt."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

Emphasis = Literal["", "best", "good", "bad", "doubtful"]
"""best: what is recommended; good and bad: a change, a failure, a verdict; doubtful: from a noisy machine."""
CHANGE_EMPHASIS: Mapping[str, Emphasis] = {"better": "good", "worse": "bad"}
"""Tones of the words for a change."""
Painter = Callable[[str, Emphasis], str]
"""A text as it is to be shown in a tone; it takes as many columns as before."""


def no_color(text: str, _: Emphasis) -> str:
    """*text* without a sign of its tone: for files, pipes and terminals without colours."""
    return text
