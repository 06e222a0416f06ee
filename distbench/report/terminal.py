"""The table of a run as text: readable at 80 columns, without colours as with them, and piped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from distbench.analysis.case_summary import CaseSummary
from distbench.analysis.choice import Wish, choose
from distbench.analysis.key_findings import failures, findings, judgements
from distbench.analysis.parity import Footnotes
from distbench.analysis.recommendation import answer
from distbench.analysis.run import AnalysedRun
from distbench.core.text import shorten
from distbench.record import Status
from distbench.report import overview
from distbench.report.view import views
from distbench.tables.emphasis import Paint, unpainted
from distbench.tables.line_wrapping import folded

_MOST_LOGS = 10


def table(run: AnalysedRun, width: int = 80, paint: Paint = unpainted) -> str:
    """The table of *run*, what it says in words, and what its columns mean.

    No line is wider than *width* (72 at least) but a path of a log, which is never broken.
    """
    cases, notes, sheet = run.cases, run.parity.footnotes, overview.sheet(run)
    rows = ["", *sheet.text_rows(width, paint)] if sheet.rows else []
    none = [] if cases else ["", "This run has no cases."]
    blocks = [
        [shorten(sheet.title, width), *rows, *none],
        footnote_lines(notes, width),
        _answer(run, width, paint),
        *_verdicts(run, width, paint),
        _wrap(findings(run), width, "  "),
        [*_wrap(failures(run), width, "  "), *_logs(cases)],
        _wrap([sheet.caption], width, "") if rows else [],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _answer(run: AnalysedRun, width: int, paint: Paint) -> list[str]:
    """What to train with, and why; nothing where nothing was measured."""
    if not any(row.measured for row in run.cases):
        return []
    best, pick = answer(run), choose(run.candidates, Wish()).pick
    if run.info.state != "finished" and pick is None:
        return ["Nothing can be recommended before the run is finished."]
    reasons = [f"  - {reason}" for reason in best.reasons]
    headline = [paint(line, "best" if pick else "doubtful") for line in _wrap([best.headline], width, "  ")]
    return [*headline, *_wrap(reasons, width, "    ")]


def footnote_lines(notes: Footnotes, width: int) -> list[str]:
    """What the marks next to the numbers mean."""
    return _wrap([f"{mark} {sentence}" for mark, sentence in notes.sentences.items()], width, "    ")


def _verdicts(run: AnalysedRun, width: int, paint: Paint) -> list[list[str]]:
    """A block for each kind of verdict: its table, or a line for each good word and each other verdict."""
    known = views()
    return [
        known[kind].sheet(run).as_text(width, paint).splitlines()
        if kind in known and known[kind].in_overview
        else [
            kind.capitalize() + (f" (evidence: distbench show --view {kind})" if kind in known else ""),
            *_wrap([f"  {text}" for text in judgements(run, kind)], width, "    "),
        ]
        for kind in run.kinds
    ]


def _logs(cases: Sequence[CaseSummary]) -> list[str]:
    """Where to read on about each failure, as paths inside the run's folder."""
    logs = [row.log for row in cases if row.log and row.status != Status.UNSUPPORTED]
    if not logs:
        return []
    more = [f"  and {len(logs) - _MOST_LOGS} more"] if len(logs) > _MOST_LOGS else []
    return ["Logs, in the run's folder:", *(f"  {log}" for log in logs[:_MOST_LOGS]), *more]


def _wrap(sentences: Iterable[str], width: int, indent: str) -> list[str]:
    """Lines of *sentences*, those that go on indented."""
    return [line for sentence in sentences for line in folded(sentence, width, later=indent)]
