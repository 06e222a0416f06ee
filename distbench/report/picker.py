"""What the page needs to answer for any wish by itself: the candidates as plain data."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from distbench.analysis.answer import Answer, answer
from distbench.analysis.candidates import candidates
from distbench.analysis.choice import GOALS, SAME_MEMORY, WITHIN, Candidate, Wish, settle
from distbench.analysis.noise import Interval
from distbench.analysis.summary import CaseSummary
from distbench.analysis.text import shorten

_GOAL_WORDS = {
    "throughput": "fastest that fits",
    "memory": "leanest near the fastest",
    "tokens-per-joule": "least energy a token",
}
_LONGEST = 160


@dataclass(frozen=True)
class Picker:
    """The answer as it stands when the page opens, and what its fields offer."""

    answer: Answer
    goals: dict[str, str]
    """Goal -> what a reader calls it."""
    devices: list[int]
    precisions: list[str]
    works: list[str]
    labels: list[str]
    """Of the strategies, in the order of the suite."""
    wish: Wish
    """What is asked for when the page opens."""
    data: dict[str, Any]
    """For the script of the page."""


def picker(cases: Sequence[CaseSummary]) -> Picker:
    """Return the picker of the cases of a run."""
    every = candidates(cases)
    energy = any(one.joules for one in every)
    return Picker(
        answer=answer(cases, every=every),
        goals={goal: _GOAL_WORDS[goal] for goal in GOALS if energy or goal != "tokens-per-joule"},
        devices=sorted({one.devices for one in every}),
        precisions=_once([one.precision for one in every]),
        works=_once([one.work for one in every]),
        labels=_once([one.label for one in every]),
        wish=settle(every, Wish()),
        data={"candidates": [_data(one) for one in every], "same": SAME_MEMORY, "within": WITHIN},
    )


def _once(words: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(words))


def _data(one: Candidate) -> dict[str, Any]:
    """Return a candidate for the script; texts short enough to stand in a table."""
    plain = {
        field.name: getattr(one, field.name)
        for field in dataclasses.fields(one)
        if field.name not in ("speed", "joules")
    }
    for name in ("barred", "unknown", "memory_unknown", "joules_unknown"):
        plain[name] = shorten(plain[name], _LONGEST)
    return {**plain, "speed": _pair(one.speed), "joules": _pair(one.joules)}


def _pair(interval: Interval | None) -> list[float | None] | None:
    return None if interval is None else [interval.value, interval.half]
