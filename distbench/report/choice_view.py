"""A choice as a table: all cases that it was made among, best first, then those left out and why."""

from __future__ import annotations

import dataclasses
from typing import Any

from distbench.analysis.answer import Answer
from distbench.analysis.choice import Candidate, Choice
from distbench.analysis.noise import CONFIDENCE, Interval
from distbench.report.tables import Table
from distbench.units import bytes_text, number_text

_HEADINGS = ("case", "tokens/s", "95 %", "memory")
_ENERGY = "J/token"
_CAPTION = (
    "Best first. tokens/s: median over trials with its interval of 95 %, higher is better; memory: what "
    "the rank that needs most takes from its device, lower is better; J/token: energy of all GPUs, where "
    "that is known, lower is better. >: what to take; =: not told from the best by more than the noise."
)


def table(choice: Choice) -> Table:
    """Return the cases that could be taken, and as notes those that could not."""
    has_energy = any(one.joules for one in choice.ranked)
    headings = (*_HEADINGS, _ENERGY) if has_energy else _HEADINGS
    rows = tuple(_row(one, _mark(one, choice))[: len(headings)] for one in choice.ranked)
    return Table("choice", "All that could be taken", _CAPTION, headings, rows, _left_out(choice))


def to_json(answer: Answer, choice: Choice, then: list[tuple[float, Choice]]) -> dict[str, Any]:
    """Return what ``pick --json`` prints; null for what is not known."""
    return {
        "wish": dataclasses.asdict(choice.wish),
        "pick": _candidate_json(choice.pick),
        "headline": answer.headline,
        "reasons": answer.reasons,
        "confidence": CONFIDENCE,
        "alike": [one.name for one in choice.alike],
        "ranked": [_candidate_json(one) for one in choice.ranked],
        "left_out": [{**(_candidate_json(one) or {}), "why": why} for one, why in choice.left_out],
        "turns": [{"memory_below": below, "pick": _candidate_json(after.pick)} for below, after in then],
    }


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
        "tokens_per_s": _interval_json(one.speed),
        "memory_bytes": one.memory,
        "joules_per_token": _interval_json(one.joules),
    }


def _interval_json(interval: Interval | None) -> dict[str, float | None] | None:
    if interval is None:
        return None
    known = interval.half is not None
    low, high = (interval.low, interval.high) if known else (None, None)
    return {"value": interval.value, "low": low, "high": high}


def _mark(one: Candidate, choice: Choice) -> str:
    return "> " if one is choice.pick else "= " if one in choice.alike else "  "


def _row(one: Candidate, mark: str) -> tuple[str, ...]:
    assert one.speed is not None
    half = "–" if one.speed.half is None else f"{number_text(one.speed.low)}–{number_text(one.speed.high)}"
    memory = "–" if one.memory is None else bytes_text(one.memory)
    joules = "–" if one.joules is None else number_text(one.joules.value)
    return f"{mark}{one.name}", number_text(one.speed.value), half, memory, joules


def _left_out(choice: Choice) -> tuple[str, ...]:
    reasons: dict[str, list[str]] = {}
    for one, why in choice.left_out:
        told = f"{why} ({bytes_text(one.memory)})" if why == "does not fit" and one.memory else why
        reasons.setdefault(told, []).append(one.name)
    return tuple(f"Left out: {', '.join(names)}: {why}." for why, names in reasons.items())
