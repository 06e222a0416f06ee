"""One metric over runs, as a table for the terminal and the page, and as JSON."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import pairwise
from typing import Any

from distbench.analysis.case_names import short_names
from distbench.analysis.change_attribution import Attribution, attribution_json
from distbench.analysis.cumulative_change import CumulativeChange, cumulative_change
from distbench.analysis.history import CaseHistory, HistoryRun, case_histories
from distbench.analysis.shift_attributions import shift_attributions
from distbench.analysis.statistics.change_points import FALSE_ALARM_RATE, MIN_POINTS, LevelShift
from distbench.core.grouping import group_pairs
from distbench.core.text import join_limited, one_line, wrap_text
from distbench.core.units import format_count, format_value
from distbench.report.history_sentences import (
    cumulative_sentences,
    effect_text,
    environment_change_text,
    run_label,
    shift_sentences,
    split_sentences,
)
from distbench.tables.table import Field, Table, TableCell, TableRow
from distbench.tables.text_table import CHANGE_EMPHASIS, Painter, no_color
from distbench.views.base import CASE_FIELDS, case_cells

_MAX_LISTED = 10


@dataclass(frozen=True)
class MetricHistory:
    """One metric of all cases, ready for display."""

    metric: str
    min_shift: float
    """Smallest shift that is reported, as a fraction."""
    runs: Sequence[HistoryRun]
    histories: list[CaseHistory]
    names: dict[str, str]
    """Case id -> unique name of its series."""
    start: datetime | None = None
    """Start of the cumulative change; None: not requested."""

    @property
    def cumulative_changes(self) -> dict[str, CumulativeChange | None]:
        """Case id -> cumulative change from ``start`` on; None: no run since.

        Empty if not requested.
        """
        start = self.start
        return (
            {each.case.id: cumulative_change(each, start, self.min_shift) for each in self.histories}
            if start
            else {}
        )

    @cached_property
    def splits(self) -> dict[str, dict[int, Attribution]]:
        """Case id -> index of the first point after a shift -> its split by the probes of these runs."""
        return {each.case.id: shift_attributions(each, self.runs) for each in self.histories}

    @classmethod
    def of(
        cls, occasions: Sequence[HistoryRun], metric: str, least: float, start: datetime | None = None
    ) -> MetricHistory:
        """Histories of *metric* over *occasions*, and cumulative changes from *start* on."""
        series = case_histories(occasions, metric, least)
        names = short_names([each.case for each in series])
        count = Counter(names.values())
        distinct = {id_: name if count[name] == 1 else f"{name} ({id_})" for id_, name in names.items()}
        return cls(metric, least, occasions, series, distinct, start)


_FIELDS = (
    *CASE_FIELDS,
    Field("runs", "runs", "Runs with a usable value.", type="bigint"),
    Field("first", "first level", "Level of the first runs."),
    Field("now", "level now", "Level of the last runs."),
    Field("breaks", "breaks", "Changes of environment.", type="bigint"),
    Field("steps", "steps", "Changes of level within one environment.", type="bigint"),
    Field("last_step", "last step", "Size of the last level shift, as a fraction."),
    Field("last_word", "", "Whether the last level shift is better, worse or neither.", type="varchar"),
)
_SINCE = Field("since", "since", "All changes since the given run, added up, as a fraction.")


def history_table(history: MetricHistory) -> Table:
    """Table with a row for each case, its changes and their dates."""
    since = history.cumulative_changes
    rows = tuple(
        _row(each, history.names[each.case.id], since.get(each.case.id)) for each in history.histories
    )
    fields = (*_FIELDS, _SINCE) if history.start else _FIELDS
    return Table(
        f"{history_title(history)} over runs",
        _caption(history),
        fields,
        rows,
        (*_history_sentences(history, since),),
    )


def history_text(history: MetricHistory, width: int, paint: Painter = no_color) -> str:
    """The table and the changes, or the reason why nothing can be compared."""
    if history.histories and all(len(each.points) == 1 for each in history.histories):
        lines = [f"{history_title(history)} over runs", *wrap_text(_no_history(history), width)]
        return "\n".join(
            [
                *lines,
                *(line for note in _skipped_runs_notes(history) for line in ["", *wrap_text(note, width)]),
            ]
        )
    return history_table(history).to_text(width, paint)


def _no_history(history: MetricHistory) -> str:
    """Sentence on why there is no history."""
    runs = len(history.runs)
    lead = "One run has no history" if runs == 1 else f"No case is in two of these {runs} runs"
    return (
        f"{lead}: at least {2 * MIN_POINTS} runs of a case in the same environment are needed to detect "
        "changes. Use distbench show RUN for a single run."
    )


def history_title(history: MetricHistory) -> str:
    """The metric with its unit and the direction of better: ``step_s (s, lower is better)``."""
    if not history.histories:
        return one_line(history.metric)
    last = history.histories[-1]
    words = [one_line(last.unit), f"{last.better} is better" if last.better in ("higher", "lower") else ""]
    more = ", ".join(word for word in words if word)
    return one_line(history.metric) + (f" ({more})" if more else "")


def _history_sentences(history: MetricHistory, since: Mapping[str, CumulativeChange | None]) -> list[str]:
    """Sentences on a history: level shifts, environment changes, cumulative changes, and their basis."""
    in_all = (
        cumulative_sentences(history.histories, history.names, since, history.start) if history.start else []
    )
    steps = [
        f"{history.names[series.case.id]}: {sentence}."
        for series in history.histories
        for sentence in shift_sentences(series)
    ]
    splits = [
        f"{history.names[series.case.id]}: {sentence}."
        for series in history.histories
        for sentence in split_sentences(series, history.splits[series.case.id])
    ]
    changes = _environment_change_sentences(history)
    return [_count(history), *steps, *in_all, *changes, *splits, *_skipped_runs_notes(history)]


def history_json(history: MetricHistory) -> dict[str, Any]:
    """JSON for ``history --json``; null for values that are unknown or not finite."""
    since = history.cumulative_changes
    return {
        "metric": history.metric,
        "least": history.min_shift,
        "runs": len(history.runs),
        "damaged": [
            {"run_id": each.run_id, **trial.to_json()} for each in history.runs for trial in each.damaged
        ],
        "series": [
            _series_json(each, since.get(each.case.id), history.splits[each.case.id])
            for each in history.histories
        ],
    }


def _series_json(
    series: CaseHistory, since: CumulativeChange | None, splits: Mapping[int, Attribution]
) -> dict[str, Any]:
    return {
        "case": series.case.name,
        "case_id": series.case.id,
        "unit": series.unit,
        "better": series.better,
        "points": [
            {
                "run_id": point.run_id,
                "created": point.created.isoformat(),
                "value": point.value.value,
                "low": point.value.low,
                "high": point.value.high,
                "trials": point.value.trial_count,
            }
            for point in series.points
        ],
        "breaks": [
            {
                "place": each.place,
                "run_id": series.points[each.place].run_id,
                "facts": list(each.facts),
                "change": _change_json(series, each.shift) if each.shift else None,
                "known": each.is_testable,
                "split": attribution_json(splits.get(each.place)),
            }
            for each in series.environment_changes
        ],
        "steps": [
            {**_change_json(series, change), "split": attribution_json(splits.get(change.place))}
            for change in series.shifts
        ],
        "levels": [dataclasses.asdict(level) for level in series.segments],
        "left_out": [{"run_id": run, "why": why} for run, why in series.skipped_runs],
        "since": _since_json(series, since) if since else None,
    }


def _since_json(series: CaseHistory, since: CumulativeChange) -> dict[str, Any]:
    return {
        "place": since.place,
        "run_id": series.points[since.place].run_id,
        "change": _change_json(series, since.change) if since.change else None,
        "known": since.is_testable,
    }


def _change_json(series: CaseHistory, step: LevelShift) -> dict[str, Any]:
    return {
        **dataclasses.asdict(step),
        "run_id": series.points[step.place].run_id,
        "effect": step.effect if math.isfinite(step.effect) else None,
        "word": series.direction(step),
    }


def _caption(history: MetricHistory) -> str:
    steps = (
        "Each run is one point, the median over its trials (of memory, the largest); a break is a "
        "change of the environment. Level shifts are searched only between breaks, with at least "
        f"{MIN_POINTS} runs on each side, and reported from {100 * history.min_shift:.3g}% on."
    )
    added = (
        " since: the sum of all changes in the environment of the last run, from the first level to "
        "the last or, without a level shift, along a straight line."
    )
    return (
        f"{steps}{added if history.start else ''} A change is reported if noise and drift would produce "
        f"one this clear in fewer than {1000 * FALSE_ALARM_RATE:.0f} of 1,000 histories. This is a "
        "monitor: it needs several runs to detect a shift. To block a regression, run both versions "
        "side by side with distbench gate."
    )


def _row(series: CaseHistory, name: str, since: CumulativeChange | None) -> TableRow:
    # the others are in the title; two more words per cell would be too many
    unit = series.unit if series.unit in ("B", "s") else ""
    first, last = (series.segments[i].value for i in (0, -1))
    step = series.shifts[-1] if series.shifts else None
    in_all = since.change if since else None
    return TableRow(
        {
            **case_cells(series.case, name),
            "runs": len(series.points),
            "first": TableCell(first, format_value(first, unit)),
            "now": TableCell(last, format_value(last, unit)),
            "breaks": len(series.environment_changes) or None,
            "steps": len(series.shifts) or None,
            "last_step": _change(series, step) if step else None,
            "last_word": series.direction(step) if step else None,
            "since": _change(series, in_all) if in_all else None,
        }
    )


def _change(series: CaseHistory, shift: LevelShift) -> TableCell:
    word = series.direction(shift)
    return TableCell(shift.effect, f"{effect_text(shift)} {word}", emphasis=CHANGE_EMPHASIS.get(word, ""))


def _count(history: MetricHistory) -> str:
    if not history.histories:
        return f"No usable {one_line(history.metric)}: no undisturbed run has a value."
    changed = sum(bool(each.shifts) for each in history.histories)
    dates = sorted(point.created for each in history.histories for point in each.points)
    sentence = (
        f"{format_count(len(history.histories), 'case')} in {format_count(len(history.runs), 'run')}, "
        f"{dates[0]:%Y-%m-%d} to {dates[-1]:%Y-%m-%d}: {changed} with a significant level shift."
    )
    needed = 2 * MIN_POINTS
    if short := sum(_longest(series) < needed for series in history.histories):
        sentence += (
            f" {format_count(short, 'case')} with too few runs; {needed} in the same environment are needed."
        )
    return sentence


def _longest(series: CaseHistory) -> int:
    """Largest number of runs in one environment."""
    ends = [0, *(each.place for each in series.environment_changes), len(series.points)]
    return max(end - start for start, end in pairwise(ends))


def _environment_change_sentences(history: MetricHistory) -> list[str]:
    """Sentence for each environment change; one that many cases share is listed once."""
    breaks = group_pairs(
        (
            (run_label(series.points[each.place]), each.facts),
            f"{history.names[series.case.id]} {environment_change_text(each, series)}",
        )
        for series in history.histories
        for each in series.environment_changes
    )
    lines = [
        f"Environment changed before run {run}: {join_limited(facts, 8)}. With it: {join_limited(cases, 8)}."
        for (run, facts), cases in breaks.items()
    ]
    earlier = f"{len(lines) - _MAX_LISTED} earlier breaks are in the JSON and on the page."
    return [*lines[-_MAX_LISTED:], *([earlier] if len(lines) > _MAX_LISTED else [])]


def _skipped_runs_notes(history: MetricHistory) -> list[str]:
    places = group_pairs(
        (why, f"{history.names[series.case.id]} in {one_line(run)}")
        for series in history.histories
        for run, why in series.skipped_runs
    )
    return [f"Not counted: {why} ({join_limited(list(dict.fromkeys(of)))})." for why, of in places.items()]
