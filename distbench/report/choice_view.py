"""Table of a choice: all eligible cases, best first, then the excluded ones with reasons."""

from __future__ import annotations

import dataclasses
from typing import Any

from distbench.analysis.choice import Candidate, Selection
from distbench.analysis.recommendation import Recommendation, selection_intervals
from distbench.analysis.statistics.intervals import CONFIDENCE
from distbench.core.grouping import group_pairs
from distbench.core.text import join_limited
from distbench.core.units import format_bytes, format_number
from distbench.tables.table import Field, Table, TableCell, TableRow

_CAPTION = (
    "Best first. tokens/s: mean over trials with its 95% interval, higher is better; memory: what the rank "
    "with the highest peak needs of its device, lower is better; J/token: energy of all GPUs, where known, "
    "lower is better. >: recommended; =: statistically tied with the best."
)
_FIELDS = (
    Field("case", "case", "Name of the case.", type="varchar"),
    Field("tokens_per_s", "tokens/s", "Mean over trials.", "tokens/s", "higher", format=format_number),
    Field("low", "", "Lower end of its 95% interval.", "tokens/s"),
    Field("high", "", "Upper end of its 95% interval.", "tokens/s"),
    Field("interval", "95%", "Its 95% interval."),
    Field("memory_bytes", "memory", "Needed by the rank with the highest peak.", "B", "lower"),
)
_ENERGY_FIELD = Field(
    "joules_per_token", "J/token", "Energy of all GPUs.", "J/token", "lower", format=format_number
)


def candidate_table(selection: Selection) -> Table:
    """Table of the eligible cases; notes give assumed memory and the reasons against other cases."""
    fields = (*_FIELDS, _ENERGY_FIELD) if any(each.joules for each in selection.ranked) else _FIELDS
    rows = tuple(_row(each, selection) for each in selection.ranked)
    return Table(
        "Eligible cases",
        _CAPTION,
        fields,
        rows,
        (*_assumed_memory_notes(selection), *_exclusion_notes(selection)),
    )


def recommendation_json(
    recommendation: Recommendation, selection: Selection, then: list[tuple[float, Selection]]
) -> dict[str, Any]:
    """JSON for ``pick --json``; null for unknown values."""
    return {
        "wish": dataclasses.asdict(selection.requirements),
        "pick": _pick_json(selection),
        "headline": recommendation.headline,
        "reasons": recommendation.reasons,
        "confidence": CONFIDENCE,
        "alike": [one.name for one in selection.tied],
        "ranked": [_candidate_json(one) for one in selection.ranked],
        "left_out": [{**(_candidate_json(one) or {}), "why": why} for one, why in selection.excluded],
        "turns": [{"memory_below": below, "pick": _candidate_json(after.pick)} for below, after in then],
    }


def _pick_json(selection: Selection) -> dict[str, Any] | None:
    """The pick, with the ends of the intervals in the headline."""
    if selection.pick is None:
        return None
    ends = {
        column: {"low": found[0], "high": found[1]} if found else None
        for column, found in selection_intervals(selection, selection.pick).items()
    }
    return {**(_candidate_json(selection.pick) or {}), "selection_intervals": ends}


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


def _row(one: Candidate, selection: Selection) -> TableRow:
    assert one.speed is not None
    mark = "> " if one is selection.pick else "= " if one in selection.tied else "  "
    speed, ends = one.speed.to_json(), f"{one.speed.text(one.speed.low)}–{one.speed.text(one.speed.high)}"
    return TableRow(
        {
            "case": TableCell(one.name, f"{mark}{one.name}"),
            "tokens_per_s": TableCell(one.speed.value, one.speed.text()),
            "low": speed["low"],
            "high": speed["high"],
            "interval": TableCell(None, ends if one.speed.half_log_width is not None else ""),
            "memory_bytes": one.memory,
            "joules_per_token": TableCell(one.joules.value, one.joules.text()) if one.joules else None,
        },
        emphasis="best" if one is selection.pick else "",
    )


def _assumed_memory_notes(selection: Selection) -> list[str]:
    every = (*selection.ranked, *(one for one, _ in selection.excluded))
    assumed = group_pairs((format_bytes(one.memory_assumed), one.name) for one in every if one.memory_assumed)
    return [
        f"Memory includes an unmeasured allowance of {much} for the CUDA context and libraries: "
        f"{join_limited(names)}."
        for much, names in assumed.items()
    ]


def _exclusion_notes(selection: Selection) -> tuple[str, ...]:
    def reason(one: Candidate, why: str) -> str:
        if why == "does not fit" and one.memory:
            return f"{why} ({format_bytes(one.memory)})"
        limit = f"more than {selection.requirements.within:.0%} slower than the fastest that fits (--within)"
        return limit if why == "too slow" else why

    reasons = group_pairs((reason(one, why), one.name) for one, why in selection.excluded)
    return tuple(f"Excluded: {', '.join(names)}: {why}." for why, names in reasons.items())
