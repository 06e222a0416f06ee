"""A choice as a table: all cases that it was made among, best first, then those left out and why."""

from __future__ import annotations

import dataclasses
from typing import Any

from distbench.analysis.choice import Candidate, Choice
from distbench.analysis.recommendation import Answer, selection_intervals
from distbench.analysis.statistics.intervals import CONFIDENCE
from distbench.core.grouping import gathered
from distbench.core.text import listed
from distbench.core.units import bytes_text, number_text
from distbench.tables.table import Cell, Field, Row, Sheet

_CAPTION = (
    "Best first. tokens/s: mean over trials with its 95% interval, higher is better; memory: what the rank "
    "with the highest peak needs of its device, lower is better; J/token: energy of all GPUs, where known, "
    "lower is better. >: recommended; =: statistically tied with the best."
)
_FIELDS = (
    Field("case", "case", "Name of the case.", type="varchar"),
    Field("tokens_per_s", "tokens/s", "Mean over trials.", "tokens/s", "higher", format=number_text),
    Field("low", "", "Lower end of its 95% interval.", "tokens/s"),
    Field("high", "", "Upper end of its 95% interval.", "tokens/s"),
    Field("interval", "95%", "Its 95% interval."),
    Field("memory_bytes", "memory", "Needed by the rank with the highest peak.", "B", "lower"),
)
_ENERGY = Field("joules_per_token", "J/token", "Energy of all GPUs.", "J/token", "lower", format=number_text)


def sheet(choice: Choice) -> Sheet:
    """The eligible cases; in the notes what of their memory is assumed, and why others are excluded."""
    fields = (*_FIELDS, _ENERGY) if any(each.joules for each in choice.ranked) else _FIELDS
    rows = tuple(_row(each, choice) for each in choice.ranked)
    return Sheet("Eligible cases", _CAPTION, fields, rows, (*_assumed(choice), *_left_out(choice)))


def to_json(answer: Answer, choice: Choice, then: list[tuple[float, Choice]]) -> dict[str, Any]:
    """What ``pick --json`` prints; null for what is not known."""
    return {
        "wish": dataclasses.asdict(choice.wish),
        "pick": _pick_json(choice),
        "headline": answer.headline,
        "reasons": answer.reasons,
        "confidence": CONFIDENCE,
        "alike": [one.name for one in choice.alike],
        "ranked": [_candidate_json(one) for one in choice.ranked],
        "left_out": [{**(_candidate_json(one) or {}), "why": why} for one, why in choice.left_out],
        "turns": [{"memory_below": below, "pick": _candidate_json(after.pick)} for below, after in then],
    }


def _pick_json(choice: Choice) -> dict[str, Any] | None:
    """The pick, with the ends of the intervals that the headline has."""
    if choice.pick is None:
        return None
    ends = {
        column: {"low": found[0], "high": found[1]} if found else None
        for column, found in selection_intervals(choice, choice.pick).items()
    }
    return {**(_candidate_json(choice.pick) or {}), "selection_intervals": ends}


def _candidate_json(one: Candidate | None) -> dict[str, Any] | None:
    if one is None:
        return None
    return {
        "case": one.name,
        "case_id": one.id,
        "strategy": one.label,
        "devices": one.devices,
        "precision": one.precision,
        "work": one.work,
        "tokens_per_s": one.speed.to_json() if one.speed else None,
        "memory_bytes": one.memory,
        "memory_assumed_bytes": None if one.memory is None else one.memory_assumed,
        "joules_per_token": one.joules.to_json() if one.joules else None,
    }


def _row(one: Candidate, choice: Choice) -> Row:
    assert one.speed is not None
    mark = "> " if one is choice.pick else "= " if one in choice.alike else "  "
    speed, ends = one.speed.to_json(), f"{one.speed.text(one.speed.low)}–{one.speed.text(one.speed.high)}"
    return Row(
        {
            "case": Cell(one.name, f"{mark}{one.name}"),
            "tokens_per_s": Cell(one.speed.value, one.speed.text()),
            "low": speed["low"],
            "high": speed["high"],
            "interval": Cell(None, ends if one.speed.half is not None else ""),
            "memory_bytes": one.memory,
            "joules_per_token": Cell(one.joules.value, one.joules.text()) if one.joules else None,
        },
        tone="best" if one is choice.pick else "",
    )


def _assumed(choice: Choice) -> list[str]:
    every = (*choice.ranked, *(one for one, _ in choice.left_out))
    assumed = gathered((bytes_text(one.memory_assumed), one.name) for one in every if one.memory_assumed)
    return [
        f"{much} of the memory is assumed for CUDA's context and libraries, which nothing measured: "
        f"{listed(names)}."
        for much, names in assumed.items()
    ]


def _left_out(choice: Choice) -> tuple[str, ...]:
    def reason(one: Candidate, why: str) -> str:
        if why == "does not fit" and one.memory:
            return f"{why} ({bytes_text(one.memory)})"
        limit = f"more than {choice.wish.within:.0%} slower than the fastest that fits (--within)"
        return limit if why == "too slow" else why

    reasons = gathered((reason(one, why), one.name) for one, why in choice.left_out)
    return tuple(f"Excluded: {', '.join(names)}: {why}." for why, names in reasons.items())
