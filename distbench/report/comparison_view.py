"""Two runs side by side, as a table for the terminal and the page, and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from distbench.analysis.case_names import short_names
from distbench.analysis.comparison import COLUMNS, Change, Pair, compare
from distbench.analysis.cross_workload import by_strategy, work_apart
from distbench.analysis.job_results import job_results
from distbench.analysis.run import AnalysedRun
from distbench.analysis.settings import differences, environment
from distbench.analysis.statistics.between_run_variance import NO_PAST, Past
from distbench.core.grouping import gathered
from distbench.core.text import listed, one_line
from distbench.core.units import value_text
from distbench.record import of_kind
from distbench.record.untrusted import untrusted_records
from distbench.report.view import CASE, case_cells
from distbench.tables import markdown_text
from distbench.tables.emphasis import OF_WORDS, Paint, unpainted
from distbench.tables.line_wrapping import folded
from distbench.tables.markdown_text import bullets, document, escaped
from distbench.tables.table import Cell, Field, Row, Sheet

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
    "Ratio of the second run to the first, with its 95% interval. +: better, !: worse, ~: changed, ?: spread "
    "unknown; no sign: within the noise. A sign allows for the number of cases, so it takes more than an "
    "interval without 1. efficiency: of scaling from one device; slower devices raise it too, so read it "
    "next to tokens/s. Two runs are two occasions: to decide about a change of code, run both sides side by "
    "side (distbench gate)."
)


@dataclass(frozen=True)
class Comparison:
    """Two runs, ready to be shown."""

    before: AnalysedRun
    after: AnalysedRun
    pairs: list[Pair]
    environment: dict[str, tuple[str, str]]
    """Fact -> what it was in each run; only those that differ."""
    past: Past
    """How much other runs of the cases have differed."""
    jobs: Mapping[str, Sheet] = field(default_factory=dict)
    """Word of a kind of job -> what it compares of its own records, if both runs have some."""
    apart: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Settings that make the runs different work -> their values; then cases are matched by strategy."""
    is_same: bool = False
    """Whether both are one run."""


def comparison(before: AnalysedRun, after: AnalysedRun, past: Past = NO_PAST) -> Comparison:
    """What differs between two runs, given how much other runs of their cases have differed."""
    sides = (before, after)
    # ranks tell more than the machine that starts them: only the same can be held together
    from_ranks = all(any(record.environment for record in side.measured) for side in sides)
    facts = [environment(side.measured if from_ranks else [], side.info.machine) for side in sides]
    apart = work_apart(before.cases, after.cases)
    matched = by_strategy if apart else partial(compare, past=past)
    pairs = matched(before.cases, after.cases)
    jobs = dict(_of_jobs(before, after))
    return Comparison(before, after, pairs, differences(*facts), past, jobs, apart)


def _of_jobs(before: AnalysedRun, after: AnalysedRun) -> Iterator[tuple[str, Sheet]]:
    for results in job_results().values():
        name, folder = results.kind.name, results.kind.folder
        sides = [of_kind(run.records, name) for run in (before, after)]
        if all(sides):
            with untrusted_records(f"the records in {folder}"):
                own = results.comparison(*sides)
            if own:
                yield name, own


def sheet(made: Comparison) -> Sheet:
    """The ratios of each case; notes say why some have none."""
    pairs = [] if made.is_same else made.pairs
    fit = [(pair, pair.after.case) for pair in pairs if not pair.incomparable and pair.after]
    names = short_names([case for _, case in fit])
    rows = [
        Row(
            {**case_cells(case, names[case.id]), **{column: _cell(pair.change(column)) for column in COLUMNS}}
        )
        for pair, case in fit
    ]
    title = f"{one_line(made.before.info.run_id)} and {one_line(made.after.info.run_id)}"
    fields = tuple(Field(column, _HEADINGS[column], "Second run over the first.") for column in COLUMNS)
    return Sheet(f"Two runs: {title}", _CAPTION, (*CASE, *fields), tuple(rows), (*sentences(made),))


def text(made: Comparison, width: int, paint: Paint = unpainted) -> str:
    """What to know first, what the environments and the settings differ in, and then the numbers."""
    shown = sheet(made)
    notes = ["\n".join(folded(each, width)) for each in shown.notes]
    if made.is_same:
        return "\n\n".join([paint(shown.title, "best"), *notes])
    table = replace(shown, title="", notes=()).as_text(width, paint)
    own = [each.as_text(width, paint) for each in made.jobs.values()]
    return "\n\n".join([paint(shown.title, "best"), *notes, table, *own])


def markdown(made: Comparison) -> str:
    """What to know first, what the environments and settings differ in, and the table in a fold."""
    shown = sheet(made)
    first, *others = shown.notes
    if made.is_same:
        return document(f"## distbench: {escaped(shown.title)}", f"**{escaped(first)}**")
    return document(
        f"## distbench: {escaped(shown.title)}",
        f"**{escaped(first)}**",
        bullets(others),
        markdown_text.folded(f"All {len(shown.rows)} cases", shown.as_markdown()),
        f"<sub>{escaped(shown.caption)}</sub>",
        *(part for own in made.jobs.values() for part in _markdown_of(own)),
    )


def _markdown_of(own: Sheet) -> list[str]:
    title = f"{own.title}: {len(own.rows)} rows"
    return [
        bullets(own.notes),
        markdown_text.folded(title, own.as_markdown()),
        f"<sub>{escaped(own.caption)}</sub>",
    ]


def sentences(made: Comparison) -> list[str]:
    """Counts of changes, environment differences, and what can't be compared."""
    if made.is_same:
        same = one_line(made.before.info.run_id)
        return [f"Both are the same run, {same}: there is nothing to compare; distbench runs lists others."]
    facts = [f"{key}: {one_line(old)}, now {one_line(new)}" for key, (old, new) in made.environment.items()]
    environment = f"Environment: {listed(facts, most=8)}." if facts else "No recorded environment difference."
    notes = gathered(
        (note, one_line(pair.name))
        for pair in made.pairs
        for note in ([f"Not compared: {pair.incomparable}"] if pair.incomparable else pair.notes)
    )
    causes = [f"{note} ({listed(names)})." for note, names in notes.items()]
    first = [_different_work(made.apart)] if made.apart else [_count(made.pairs), *_occasions(made)]
    return [*first, environment, *causes]


def _different_work(apart: Mapping[str, tuple[str, str]]) -> str:
    said = [f"{key} = {one_line(new)}, was {one_line(old)}" for key, (old, new) in apart.items()]
    return (
        f"The runs do different work: {listed(said, most=8)}. Cases are matched by strategy and number of "
        "devices; a ratio tells what a strategy makes of the other work, and is neither better nor worse."
    )


def _occasions(made: Comparison) -> list[str]:
    """What the intervals hold of the difference between two occasions."""
    paces = [change for pair in made.pairs if (change := pair.change("tokens_per_s"))]
    known = [change.days for change in paces if change.days]
    if not paces:
        return []
    if not known:
        return [
            "How much other runs of these cases differ from day to day is not known: "
            f"{made.past.absent}. So the intervals hold the differences of trials alone, and a small change "
            "proves nothing."
        ]
    of = "the cases" if len(known) == len(paces) else f"{len(known)} of {len(paces)} cases"
    most = f"{min(known)} to {max(known)}" if min(known) < max(known) else f"{min(known)}"
    rest = "" if len(known) == len(paces) else "; those of the others hold the differences of trials alone"
    return [
        f"The intervals of {of} hold how much earlier runs of them differ where nothing changed ({most} "
        f"degrees of freedom){rest}."
    ]


def to_json(made: Comparison) -> dict[str, Any]:
    """What ``compare --json`` prints; null for what is not known."""
    return {
        "runs": [made.before.info.run_id, made.after.info.run_id],
        "environment": {key: list(values) for key, values in made.environment.items()},
        "different_work": {key: list(values) for key, values in made.apart.items()},
        "days_absent": None if made.past.days else made.past.absent,
        "cases": [
            {
                "case": pair.name,
                "incomparable": pair.incomparable or None,
                "notes": list(pair.notes),
                "changes": {
                    change.column: {
                        "unit": change.unit,
                        "before": change.before.value,
                        "after": change.after.value,
                        "ratio": change.ratio.to_json(),
                        "word": change.word,
                        "days": change.days,
                    }
                    for change in pair.changes
                },
            }
            for pair in made.pairs
        ],
        "jobs": {word: own.to_json() for word, own in made.jobs.items()},
    }


def _cell(change: Change | None) -> Cell:
    """Ratio with its interval and sign: ``0.93 (0.90–0.96) !``; ``=`` where nothing changed."""
    if change is None:
        return Cell(None, reason="not in both runs")
    ratio = change.ratio
    if change.before.value == change.after.value:
        return Cell(ratio.value, "=")
    range_ = f" ({ratio.low:.3f}–{ratio.high:.3f})" if ratio.half else ""
    text = f"{ratio.value:.3f}{range_} {_SIGNS[change.word]}".rstrip()
    return Cell(ratio.value, text, tone=OF_WORDS.get(change.word, ""))


def _count(pairs: Sequence[Pair]) -> str:
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
        value_text(side.value, furthest.unit, side.half_width) for side in (furthest.before, furthest.after)
    )
    return (
        f"Throughput of {len(changes)} cases: {', '.join(counts)}; largest change {one_line(name)}, "
        f"{old} before and {new} now."
    )
