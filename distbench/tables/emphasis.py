"""What a part of a text says before it is read, where a terminal shows it: the best, a problem, a doubt."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

Tone = Literal["", "best", "good", "bad", "doubtful"]
"""best: what is recommended; good and bad: a change, a failure, a verdict; doubtful: from a noisy machine."""
OF_WORDS: Mapping[str, Tone] = {"better": "good", "worse": "bad"}
"""Tones of the words for a change."""
Paint = Callable[[str, Tone], str]
"""A text as it is to be shown in a tone; it takes as many columns as before."""


def unpainted(text: str, _: Tone) -> str:
    """*text* without a sign of its tone: for files, pipes and terminals without colours."""
    return text
