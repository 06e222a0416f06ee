"""Report of a run as text: readable at 80 columns, with or without colors, and when piped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from distbench.analysis.case_summary import CaseSummary
from distbench.analysis.parity import Footnotes
from distbench.analysis.run import RunAnalysis
from distbench.analysis.wording.findings import failure_sentences, key_findings, verdict_sentences
from distbench.analysis.wording.recommendation import recommend
from distbench.core.text import shorten, wrap_text
from distbench.record import Status
from distbench.report import overview
from distbench.tables.text_table import Painter, no_color
from distbench.views.base import all_views

_MAX_LOGS = 10


def overview_text(run: RunAnalysis, width: int = 80, paint: Painter = no_color) -> str:
    """Table of *run*, its findings in words, and the meaning of its columns.

    No line is wider than *width* (72 at least) except for the path of a log, which is never broken.
    """
    cases, notes, table = run.cases, run.parity.footnotes, overview.overview_table(run)
    rows = ["", *table.to_text_lines(width, paint)] if table.rows else []
    none = [] if cases else ["", "This run has no cases."]
    blocks = [
        [shorten(table.title, width), *rows, *none],
        footnote_lines(notes, width),
        _recommendation(run, width, paint),
        *_verdicts(run, width, paint),
        _wrap(key_findings(run), width, "  "),
        [*_wrap(failure_sentences(run), width, "  "), *_logs(cases)],
        _wrap([table.caption], width, "") if rows else [],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _recommendation(run: RunAnalysis, width: int, paint: Painter) -> list[str]:
    """Recommended case with the reasons; empty if nothing was measured."""
    if not any(row.measured for row in run.cases):
        return []
    best, pick = recommend(run), run.selection.pick
    if run.info.state != "finished" and pick is None:
        return ["Nothing can be recommended before the run is finished."]
    reasons = [f"  - {reason}" for reason in best.reasons]
    headline = [paint(line, "best" if pick else "doubtful") for line in _wrap([best.headline], width, "  ")]
    return [*headline, *_wrap(reasons, width, "    ")]


def footnote_lines(notes: Footnotes, width: int) -> list[str]:
    """Meanings of the marks next to the numbers."""
    return _wrap([f"{mark} {sentence}" for mark, sentence in notes.sentences.items()], width, "    ")


def _verdicts(run: RunAnalysis, width: int, paint: Painter) -> list[list[str]]:
    """A block for each kind of verdict: its table, or a line for each good word and each other verdict."""
    known = all_views()
    return [
        known[kind].table(run).to_text(width, paint).splitlines()
        if kind in known and known[kind].in_overview
        else [
            kind.capitalize() + (f" (evidence: distbench show --view {kind})" if kind in known else ""),
            *_wrap([f"  {text}" for text in verdict_sentences(run, kind)], width, "    "),
        ]
        for kind in run.verdict_kinds
    ]


def _logs(cases: Sequence[CaseSummary]) -> list[str]:
    """Paths of the logs of each failure inside the run's folder."""
    logs = [row.log for row in cases if row.log and row.status != Status.UNSUPPORTED]
    if not logs:
        return []
    more = [f"  and {len(logs) - _MAX_LOGS} more"] if len(logs) > _MAX_LOGS else []
    return ["Logs, in the run's folder:", *(f"  {log}" for log in logs[:_MAX_LOGS]), *more]


def _wrap(sentences: Iterable[str], width: int, indent: str) -> list[str]:
    """Wrap *sentences*, with indented continuation lines."""
    return [line for sentence in sentences for line in wrap_text(sentence, width, indent=indent)]
