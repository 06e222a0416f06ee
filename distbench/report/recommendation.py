"""Recommendation of a run: as a table and JSON for ``pick``, and stored next to its report.

``answer.json`` is for lists of many runs: computing it takes about a second for a run of some 30 trials;
reading it takes a millisecond.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distbench.analysis.choice import Candidate, Selection
from distbench.analysis.run import RunAnalysis
from distbench.analysis.statistics.intervals import CONFIDENCE
from distbench.analysis.wording.recommendation import Recommendation, recommend, selection_intervals
from distbench.core.bounds import Name
from distbench.core.errors import RecordError
from distbench.core.grouping import group_pairs
from distbench.core.serialization import decode
from distbench.core.text import join_limited
from distbench.core.units import format_bytes, format_number
from distbench.record import MAX_JSON_BYTES, read_json
from distbench.record.record_reader import RECORD_FILE
from distbench.record.run_folder import Run, write_json
from distbench.system.files import sha256_bounded
from distbench.tables.table import Field, Table, TableCell, TableRow

_CAPTION = (
    "Best first. tokens/s: mean over trials with its 95% interval, higher is better; memory: what the rank "
    "with the highest peak needs of its device, lower is better; J/token: energy of all GPUs, where known, "
    "lower is better. >: recommended; =: statistically tied with the best; *: measured on a noisy machine, "
    "so the order may change."
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

FILE = "answer.json"


def candidate_table(selection: Selection) -> Table:
    """Table of the eligible cases and of those that only noise bars, best first.

    Notes give assumed memory and the reasons against other cases.
    """
    shown = selection.provisional or selection.ranked
    fields = (*_FIELDS, _ENERGY_FIELD) if any(each.joules for each in shown) else _FIELDS
    rows = tuple(_row(each, selection) for each in shown)
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
        "provisional": [_candidate_json(one) for one in selection.provisional],
        "to_measure": [_candidate_json(one) for one in selection.to_measure],
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
        "predicted_tokens_per_s": vars(one.predicted) if one.predicted else None,
        "predicted_memory_bytes": one.predicted_memory,
    }


def _row(one: Candidate, selection: Selection) -> TableRow:
    assert one.speed is not None
    speed, ends = one.speed.to_json(), f"{one.speed.text(one.speed.low)}–{one.speed.text(one.speed.high)}"
    return TableRow(
        {
            "case": TableCell(one.name, f"{_mark(one, selection)} {one.name}"),
            "tokens_per_s": TableCell(one.speed.value, one.speed.text()),
            "low": speed["low"],
            "high": speed["high"],
            "interval": TableCell(None, ends if one.speed.half_log_width is not None else ""),
            "memory_bytes": one.memory,
            "joules_per_token": TableCell(one.joules.value, one.joules.text()) if one.joules else None,
        },
        emphasis="best" if one is selection.pick else "doubtful" if one.is_noisy else "",
    )


def _mark(one: Candidate, selection: Selection) -> str:
    if one is selection.pick:
        return ">"
    if one.is_noisy:
        return "*"
    return "=" if one in selection.tied else " "


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

    # cases that only noise bars are in the table
    remaining = [(one, why) for one, why in selection.excluded if one not in selection.provisional]
    open_ = {one.id for one in selection.to_measure}
    reasons = group_pairs((reason(one, why), one.name) for one, why in remaining if one.id not in open_)
    predicted_texts = [one.predicted_text for one in selection.to_measure]
    return (
        *([f"Predicted, worth measuring: {', '.join(predicted_texts)}."] if predicted_texts else []),
        *(f"Excluded: {', '.join(names)}: {why}." for why, names in reasons.items()),
    )


@dataclass(frozen=True)
class StoredRecommendation:
    """Recommendation of ``distbench pick`` for a run without further requirements."""

    records: int
    """Number of trials that it rests on; if the run has a different number now, it is out of date."""
    pick: Name
    """Name of the recommended case; empty if there is none."""
    headline: Name
    digest: str = ""
    """Digest of the records that it rests on (``_digest_of``); if theirs differs now, it is out of date.
    Empty: stored by a version that only counted them."""

    @classmethod
    def of(cls, run: RunAnalysis) -> StoredRecommendation:
        """The recommendation of *run*."""
        pick = run.selection.pick
        damaged = sum(each.is_trial for each in run.damaged)
        return cls(len(run.records) + damaged, pick.name if pick else "", recommend(run).headline)

    def write(self, folder: Path) -> None:
        """Write it into the *folder* of its run.

        Raises:
            InfrastructureError: the file can't be written.
        """
        digest = _digest_of(Run(folder).recorded_trials())
        write_json(folder / FILE, dataclasses.asdict(self) | {"digest": digest})


def _digest_of(trials: Sequence[Path]) -> str:
    """SHA-256 of the records in the folders *trials*, in hex digits; an unreadable record counts as empty."""
    digest = hashlib.sha256()
    for trial in sorted(trials):
        digest.update("/".join(trial.parts[-3:]).encode())
        with suppress(OSError):
            digest.update(sha256_bounded(trial / RECORD_FILE, MAX_JSON_BYTES).encode())
    return digest.hexdigest()


def read_recommendation(folder: Path, trials: Sequence[Path]) -> tuple[StoredRecommendation | None, str]:
    """Recommendation of the run in *folder* with its *trials*, or None with the reason."""
    file = folder / FILE
    if not file.exists():
        return None, "not stored"
    try:
        stored = decode(StoredRecommendation, read_json(file), str(file))
    except RecordError as error:
        return None, str(error)
    if stored.records != len(trials):
        return None, "trials were added since it was stored"
    if stored.digest and stored.digest != _digest_of(trials):
        return None, "trials have changed since it was stored"
    return stored, ""
