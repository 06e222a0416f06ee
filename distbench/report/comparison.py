"""Comparison of two runs, as a table for the terminal and the page, and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from distbench.analysis.case_names import short_names
from distbench.analysis.change_attribution import (
    Attribution,
    ChangeAttribution,
    absence_sentences,
    attribute_change,
    attribution_json,
)
from distbench.analysis.comparison import (
    COMPARED_COLUMNS,
    STEP,
    CasePair,
    MetricChange,
    compare_cases,
)
from distbench.analysis.different_work import match_by_strategy, work_differences
from distbench.analysis.job_results import job_results
from distbench.analysis.run import RunAnalysis
from distbench.analysis.settings import fact_differences, merge_environments
from distbench.analysis.statistics.intervals import NO_EARLIER_RUNS, RunVariances
from distbench.core.grouping import group_pairs
from distbench.core.text import join_limited, one_line, wrap_text
from distbench.core.units import format_value
from distbench.record import records_of_kind
from distbench.record.record_reader import untrusted_records
from distbench.tables.foreign_text import bullets, details, escape_markdown, join_blocks
from distbench.tables.table import Field, Table, TableCell, TableRow
from distbench.tables.text_table import CHANGE_EMPHASIS, Painter, no_color
from distbench.views.base import CASE_FIELDS, case_cells

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
    "Ratio of the second run to the first, with its 95% interval. +: better, !: worse, ~: changed, ?: "
    "spread unknown; no sign: within the noise. Signs are corrected for the number of cases, so not "
    "every interval without 1 has a sign. efficiency: of scaling from one device; slower devices raise "
    "it too, so read it next to tokens/s. The state of a machine may differ from run to run: to judge "
    "a code change, run both versions side by side (distbench gate)."
)


@dataclass(frozen=True)
class RunComparison:
    """Two runs with all differences, ready for display."""

    before: RunAnalysis
    after: RunAnalysis
    pairs: list[CasePair]
    environment: dict[str, tuple[str, str]]
    """Fact -> its value in each run, for facts that differ."""
    run_variances: RunVariances
    """Variance between other runs of the cases."""
    jobs: Mapping[str, Table] = field(default_factory=dict)
    """Kind of job -> comparison of its own records, if both runs have some."""
    work_differences: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Settings that make the runs different work -> their values; then cases are matched by strategy."""
    splits: Mapping[str, Attribution | None] = field(default_factory=dict)
    """Case id -> its change of a step, split by the probes of both runs; None: they do not have two."""
    is_same: bool = False
    """True if both are the same run."""


def compare_runs(
    before: RunAnalysis, after: RunAnalysis, run_variances: RunVariances = NO_EARLIER_RUNS
) -> RunComparison:
    """Compare two runs, given the variance between other runs of their cases."""
    sides = (before, after)
    # ranks report more than the launching machine: compare only facts from the same source
    from_ranks = all(any(record.environment for record in side.timed_records) for side in sides)
    facts = [
        merge_environments(side.timed_records if from_ranks else [], side.info.machine) for side in sides
    ]
    different_settings = work_differences(before.cases, after.cases)
    matched = match_by_strategy if different_settings else partial(compare_cases, run_variances=run_variances)
    pairs = matched(before.cases, after.cases)
    environment = fact_differences(*facts)
    jobs = dict(_job_tables(before, after))
    splits = {} if different_settings else _splits(before, after, pairs, environment)
    return RunComparison(before, after, pairs, environment, run_variances, jobs, different_settings, splits)


def _splits(
    before: RunAnalysis, after: RunAnalysis, pairs: Sequence[CasePair], environment: Iterable[str]
) -> dict[str, Attribution | None]:
    """Split of the step's change of each case that has one, by case id."""
    return {
        pair.id: attribute_change(pair.after.case, change.ratio, before.records, after.records, environment)
        for pair in pairs
        if pair.after and (change := pair.change(STEP))
    }


def _job_tables(before: RunAnalysis, after: RunAnalysis) -> Iterator[tuple[str, Table]]:
    for results in job_results().values():
        name, folder = results.kind.name, results.kind.folder
        sides = [records_of_kind(run.records, name) for run in (before, after)]
        if all(sides):
            with untrusted_records(f"the records in {folder}"):
                own = results.comparison(*sides)
            if own:
                yield name, own


def comparison_table(comparison: RunComparison) -> Table:
    """Table with the ratios of each case; notes give the reasons for missing ones."""
    pairs = [] if comparison.is_same else comparison.pairs
    fit = [(pair, pair.after.case) for pair in pairs if not pair.incomparable and pair.after]
    names = short_names([case for _, case in fit])
    rows = [
        TableRow(
            {
                **case_cells(case, names[case.id]),
                **{column: _cell(pair.change(column)) for column in COMPARED_COLUMNS},
            }
        )
        for pair, case in fit
    ]
    title = f"{one_line(comparison.before.info.run_id)} and {one_line(comparison.after.info.run_id)}"
    fields = tuple(
        Field(column, _HEADINGS[column], "Second run over the first.") for column in COMPARED_COLUMNS
    )
    return Table(
        f"Two runs: {title}",
        _CAPTION,
        (*CASE_FIELDS, *fields),
        tuple(rows),
        (*comparison_sentences(comparison),),
    )


def comparison_text(comparison: RunComparison, width: int, paint: Painter = no_color) -> str:
    """Summary, differences in environment and settings, and then the numbers."""
    shown = comparison_table(comparison)
    notes = ["\n".join(wrap_text(each, width)) for each in shown.notes]
    if comparison.is_same:
        return "\n\n".join([paint(shown.title, "best"), *notes])
    table = replace(shown, title="", notes=()).to_text(width, paint)
    own = [each.to_text(width, paint) for each in comparison.jobs.values()]
    return "\n\n".join([paint(shown.title, "best"), *notes, table, *own])


def comparison_markdown(comparison: RunComparison) -> str:
    """Summary, differences in environment and settings, and the table in a collapsible block."""
    shown = comparison_table(comparison)
    first, *others = shown.notes
    if comparison.is_same:
        return join_blocks(f"## distbench: {escape_markdown(shown.title)}", f"**{escape_markdown(first)}**")
    return join_blocks(
        f"## distbench: {escape_markdown(shown.title)}",
        f"**{escape_markdown(first)}**",
        bullets(others),
        details(f"All {len(shown.rows)} cases", shown.to_markdown()),
        f"<sub>{escape_markdown(shown.caption)}</sub>",
        *(part for own in comparison.jobs.values() for part in _markdown_of(own)),
    )


def _markdown_of(own: Table) -> list[str]:
    title = f"{own.title}: {len(own.rows)} rows"
    return [
        bullets(own.notes),
        details(title, own.to_markdown()),
        f"<sub>{escape_markdown(own.caption)}</sub>",
    ]


def comparison_sentences(comparison: RunComparison) -> list[str]:
    """Counts of changes, environment differences, and what can't be compared."""
    if comparison.is_same:
        same = one_line(comparison.before.info.run_id)
        return [f"Both are the same run, {same}: there is nothing to compare; distbench runs lists others."]
    facts = [
        f"{key}: {one_line(old)}, now {one_line(new)}" for key, (old, new) in comparison.environment.items()
    ]
    environment = (
        f"Environment: {join_limited(facts, limit=8)}." if facts else "No recorded environment difference."
    )
    notes = group_pairs(
        (note, one_line(pair.name))
        for pair in comparison.pairs
        for note in ([f"Not compared: {pair.incomparable}"] if pair.incomparable else pair.notes)
    )
    causes = [f"{note} ({join_limited(names)})." for note, names in notes.items()]
    first = (
        [_different_work(comparison.work_differences)]
        if comparison.work_differences
        else [_count(comparison.pairs), *_run_variance_note(comparison)]
    )
    return [*first, environment, *_split_sentences(comparison), *causes]


def _split_sentences(comparison: RunComparison) -> Iterator[str]:
    """Sentences on what the machine explains of changed steps, and on cases where that is unknown."""
    changed = {}
    for pair in comparison.pairs:
        split, change = comparison.splits.get(pair.id), pair.change(STEP)
        is_clear = isinstance(split, ChangeAttribution) and split.has_unexplained_change
        if split and change and (is_clear or change.word != "same"):
            changed[pair.name] = split
    for name, split in changed.items():
        if isinstance(split, ChangeAttribution):
            yield f"{one_line(name)}: {split.sentence()}."
    yield from absence_sentences(changed)


def _different_work(settings: Mapping[str, tuple[str, str]]) -> str:
    clauses = [f"{key} = {one_line(new)}, was {one_line(old)}" for key, (old, new) in settings.items()]
    return (
        f"The runs do different work: {join_limited(clauses, limit=8)}. Cases are matched by strategy and "
        "number of devices; ratios compare different work and are not judged."
    )


def _run_variance_note(comparison: RunComparison) -> list[str]:
    """Note on the between-run variance that the intervals include."""
    paces = [change for pair in comparison.pairs if (change := pair.change("tokens_per_s"))]
    known = [change.run_degrees_of_freedom for change in paces if change.run_degrees_of_freedom]
    if not paces:
        return []
    if not known:
        return [
            f"The run-to-run variance of these cases is unknown: {comparison.run_variances.absent}. The "
            "intervals cover trial-to-trial variance only, so a small change is not evidence."
        ]
    of = "the cases" if len(known) == len(paces) else f"{len(known)} of {len(paces)} cases"
    most = f"{min(known)} to {max(known)}" if min(known) < max(known) else f"{min(known)}"
    rest = "" if len(known) == len(paces) else "; those of the others cover trial-to-trial variance only"
    return [
        f"The intervals of {of} include the run-to-run variance of earlier runs without changes ({most} "
        f"degrees of freedom){rest}."
    ]


def comparison_json(comparison: RunComparison) -> dict[str, Any]:
    """JSON for ``compare --json``; null for unknown values."""
    return {
        "runs": [comparison.before.info.run_id, comparison.after.info.run_id],
        "environment": {key: list(values) for key, values in comparison.environment.items()},
        "different_work": {key: list(values) for key, values in comparison.work_differences.items()},
        "days_absent": None
        if comparison.run_variances.by_case_and_column
        else comparison.run_variances.absent,
        "cases": [
            {
                "case": pair.name,
                "incomparable": pair.incomparable or None,
                "disturbed": pair.disturbed or None,
                "notes": list(pair.notes),
                "changes": {
                    change.column: {
                        "unit": change.unit,
                        "before": change.before.value,
                        "after": change.after.value,
                        "ratio": change.ratio.to_json(),
                        "word": change.word,
                        "days": change.run_degrees_of_freedom,
                    }
                    for change in pair.changes
                },
                "split": attribution_json(comparison.splits.get(pair.id)),
            }
            for pair in comparison.pairs
        ],
        "jobs": {word: own.to_json() for word, own in comparison.jobs.items()},
    }


def _cell(change: MetricChange | None) -> TableCell:
    """Ratio with its interval and sign: ``0.93 (0.90–0.96) !``; ``=`` if nothing changed."""
    if change is None:
        return TableCell(None, reason="not in both runs")
    ratio = change.ratio
    if change.before.value == change.after.value:
        return TableCell(ratio.value, "=")
    range_ = f" ({ratio.low:.3f}–{ratio.high:.3f})" if ratio.half_log_width else ""
    text = f"{ratio.value:.3f}{range_} {_SIGNS[change.word]}".rstrip()
    return TableCell(ratio.value, text, emphasis=CHANGE_EMPHASIS.get(change.word, ""))


def _count(pairs: Sequence[CasePair]) -> str:
    changes = [(pair.name, change) for pair in pairs if (change := pair.change("tokens_per_s"))]
    if not changes:
        return "No case has a comparable throughput in both runs."
    words = Counter(change.word for _, change in changes)
    counts = [
        f"{words['better']} measurably faster",
        f"{words['worse']} measurably slower",
        f"{words['same']} within the noise",
        *([f"{words['unknown']} with unknown spread"] if words["unknown"] else []),
    ]
    name, furthest = max(changes, key=lambda pair: abs(pair[1].ratio.value - 1))
    old, new = (
        format_value(side.value, furthest.unit, side.half_width) for side in (furthest.before, furthest.after)
    )
    return (
        f"Throughput of {len(changes)} cases: {', '.join(counts)}; largest change {one_line(name)}, "
        f"{old} before and {new} now."
    )
