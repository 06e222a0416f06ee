"""Two runs side by side, as a table for the terminal and the page, and as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from distbench.analysis.comparison import COLUMNS, Change, Pair, compare
from distbench.analysis.environment import differences, environment
from distbench.analysis.names import short_names
from distbench.analysis.noise import Interval
from distbench.analysis.summary import summarise
from distbench.analysis.text import listed, one_line
from distbench.record import Record, of_kind
from distbench.report.tables import Table, as_text
from distbench.store import RunInfo
from distbench.units import value_text

_HEADINGS = {
    "tokens_per_s": "tokens/s",
    "efficiency": "efficiency",
    "step_s": "step",
    "memory_peak": "memory",
    "comm_bytes": "comm.",
    "final_loss": "loss",
}
_SIGNS = {"better": "+", "worse": "!", "other": "~", "same": "", "unknown": "?"}
_CAPTION = (
    "The second run over the first, with the interval of 95 % that the noise of the trials leaves. "
    "+: better, !: worse, ~: changed, ?: no spread is known; no sign: within the noise. efficiency: of "
    "scaling from one device; slower devices raise it too, so it is read beside tokens/s. The two runs are "
    "two occasions: what a machine differs by from one to another is in no interval here, so a small "
    "difference proves nothing about a change of code."
)
_SAME_ENVIRONMENT = "Both runs were made in the same environment, as far as they tell."


@dataclass(frozen=True)
class Side:
    """One of the runs."""

    info: RunInfo
    records: Sequence[Record]


@dataclass(frozen=True)
class Comparison:
    """Two runs, ready to be shown."""

    before: Side
    after: Side
    pairs: list[Pair]
    environment: dict[str, tuple[str, str]]
    """Fact -> what it was in each run; only those that differ."""


def comparison(before: Side, after: Side) -> Comparison:
    """Return what differs between two runs."""
    cases = [summarise(side.info, side.records) for side in (before, after)]
    records = [of_kind(side.records, "measure") for side in (before, after)]
    if not all(any(record.environment for record in mine) for mine in records):
        # ranks tell more than the machine that starts them: only the same can be held together
        records = [[], []]
    told = [environment(mine, side.info.machine) for mine, side in zip(records, (before, after), strict=True)]
    return Comparison(before, after, compare(*cases), differences(*told))


def table(made: Comparison) -> Table:
    """Return the ratios of each case, and why some have none."""
    fit = [pair for pair in made.pairs if not pair.incomparable and pair.after]
    names = short_names([pair.after.case for pair in fit if pair.after])
    rows = tuple((names[pair.after.case.id], *_cells(pair)) for pair in fit if pair.after)
    title = f"{one_line(made.before.info.run_id)} and {one_line(made.after.info.run_id)}"
    headings = ("case", *(_HEADINGS[column] for column in COLUMNS))
    return Table("compare", f"Two runs: {title}", _CAPTION, headings, rows, (*sentences(made),))


def text(made: Comparison, width: int) -> str:
    """Return what to know first, what the environments and the settings differ in, and then the numbers."""
    shown = table(made)
    said = [textwrap.fill(each, width, break_on_hyphens=False) for each in shown.notes]
    return "\n\n".join([shown.title, *said, as_text(replace(shown, title="", notes=()), width).lstrip("\n")])


def sentences(made: Comparison) -> list[str]:
    """Return what to know of a comparison: how many changed, what differed, what can't be compared."""
    said = [_count(made.pairs)]
    facts = [f"{key}: {one_line(old)}, now {one_line(new)}" for key, (old, new) in made.environment.items()]
    said.append(f"Environment: {listed(facts, most=8)}." if facts else _SAME_ENVIRONMENT)
    notes: dict[str, list[str]] = {}
    for pair in made.pairs:
        for note in [f"Not compared: {pair.incomparable}"] if pair.incomparable else pair.notes:
            notes.setdefault(note, []).append(one_line(pair.name))
    return [*said, *(f"{note} ({listed(names)})." for note, names in notes.items())]


def to_json(made: Comparison) -> dict[str, Any]:
    """Return what ``compare --json`` prints; null for what is not known."""
    return {
        "runs": [made.before.info.run_id, made.after.info.run_id],
        "environment": {key: list(told) for key, told in made.environment.items()},
        "cases": [
            {
                "case": pair.name,
                "incomparable": pair.incomparable or None,
                "notes": list(pair.notes),
                "changes": {each.column: _change_json(each) for each in pair.changes},
            }
            for pair in made.pairs
        ],
    }


def _change_json(change: Change) -> dict[str, Any]:
    return {
        "unit": change.unit,
        "before": change.before.value,
        "after": change.after.value,
        "ratio": _interval_json(change.ratio),
        "word": change.word,
    }


def _interval_json(interval: Interval) -> dict[str, float | None]:
    low, high = (None, None) if interval.half is None else (interval.low, interval.high)
    return {"value": interval.value, "low": low, "high": high}


def _cells(pair: Pair) -> tuple[str, ...]:
    return tuple(_cell(pair.change(column)) for column in COLUMNS)


def _cell(change: Change | None) -> str:
    """Return ``0.93 (0.90-0.96) !``; the two values where the ratio would round to 1."""
    if change is None:
        return "–"
    ratio = change.ratio
    if change.before.value == change.after.value:
        return "="
    range_ = f" ({ratio.low:.3f}–{ratio.high:.3f})" if ratio.half else ""
    return f"{ratio.value:.3f}{range_} {_SIGNS[change.word]}".rstrip()


def _count(pairs: Sequence[Pair]) -> str:
    changes = [change for pair in pairs if (change := pair.change("tokens_per_s"))]
    if not changes:
        return "No case has a throughput in both runs that may be compared."
    words = {
        word: sum(each.word == word for each in changes) for word in ("better", "worse", "same", "unknown")
    }
    told = [
        f"{words['better']} faster beyond the noise of the trials",
        f"{words['worse']} slower",
        f"{words['same']} within it",
    ]
    if words["unknown"]:
        told.append(f"{words['unknown']} with no spread known")
    furthest = max(changes, key=lambda each: abs(each.ratio.value - 1))
    name = next(pair.name for pair in pairs if pair.change("tokens_per_s") is furthest)
    old, new = (value_text(side.value, furthest.unit) for side in (furthest.before, furthest.after))
    return (
        f"Throughput of {len(changes)} cases: {', '.join(told)}; furthest {one_line(name)}, "
        f"{old} before and {new} now."
    )
