"""Overview of a run: the table of all cases, and a report as text and as Markdown.

The text is readable at 80 columns, with or without colors, and when piped. The Markdown is for the comment
of a pull request: recommendation first, the rest collapsed; tables and ``<details>`` work on both GitHub and
GitLab.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from distbench.analysis.case_names import name_parts
from distbench.analysis.case_summary import LOSS, MEMORY, THROUGHPUT, UNMEASURED, CaseSummary
from distbench.analysis.choice import Candidate
from distbench.analysis.cost import COST_PER_BILLION_TOKENS
from distbench.analysis.parity import Footnotes
from distbench.analysis.run import RunAnalysis
from distbench.analysis.wire_traffic import WIRE_BYTES
from distbench.analysis.wording.failure_sentences import failure_sentences
from distbench.analysis.wording.findings import key_findings
from distbench.analysis.wording.recommendation import recommend
from distbench.analysis.wording.verdict_sentences import verdict_sentences
from distbench.core.grouping import group_by
from distbench.core.text import one_line, shorten, wrap_text
from distbench.core.units import format_number
from distbench.record import NOT_LAUNCHED_TEXT, Status
from distbench.tables.foreign_text import bullets, details, escape_markdown, join_blocks
from distbench.tables.table import Table, TableCell, TableRow
from distbench.tables.text_table import Emphasis, Painter, no_color
from distbench.views.base import (
    CASE_FIELDS,
    RELATIVE_COLUMN,
    CaseColumn,
    all_views,
    case_cells,
    column_cells,
    rate_column,
    spread_cell,
)

_CAPTION = (
    "tokens/s: mean over trials ± half its 95% interval, higher is better; x ddp: tokens/s relative to "
    "ddp at the same world size; peak mem: most bytes of tensors on any rank in any trial, lower is better; "
    "comm/step: bytes that a rank sends per step, lower is better; loss: of the last timed step; "
    "1/3 ok: measured trials, of all; *: measured on a noisy machine, not compared; –: not known, "
    "see distbench show --json for the reason."
)
_MAX_LOGS = 10


def _loss(value: float) -> str:
    return f"{value:.4f}" if abs(value) < 100 else f"{value:.3g}"


def _status_cell(row: CaseSummary) -> TableCell:
    word = f"{row.trials}/{row.trials + row.failed} ok" if row.failed else row.status
    return TableCell(row.status, ("differs" if row.differs else word) + ("*" if row.degraded else ""))


def _speed_cell(row: CaseSummary) -> TableCell:
    return spread_cell(row, THROUGHPUT, _speed_text)


def _speed_text(value: float, half: float) -> str:
    # ten million or more does not fit next to its spread
    return f"{format_number(value / 1e6, half / 1e6)} M" if value >= 1e7 else format_number(value, half)


_COLUMNS = (
    CaseColumn("status", "status", "Final status of the case.", type="varchar", read=_status_cell),
    CaseColumn(THROUGHPUT, "tokens/s", "Mean over trials.", "tokens/s", "higher", read=_speed_cell),
    RELATIVE_COLUMN,
    CaseColumn(MEMORY, "peak mem", "Peak memory of any rank in any trial.", "B", "lower"),
    CaseColumn(WIRE_BYTES, "comm/step", "Bytes that a rank sends per step.", "B", "lower"),
    CaseColumn(LOSS, "loss", "Loss of the last timed step.", "", "lower", format=_loss),
)


def overview_table(run: RunAnalysis) -> Table:
    """Table of all cases of *run* to be measured, grouped by the part of their names after the strategy."""
    marks = run.parity.footnotes.marks
    requested = [row for row in run.cases if row.status != UNMEASURED]
    groups = group_by(requested, lambda row: "/".join(name_parts(row.case)))
    pick = run.selection.pick
    price = f"{run.device_cost.currency}/1e9 tok" if run.device_cost else ""
    cost = rate_column(COST_PER_BILLION_TOKENS, price, "Cost of 1e9 tokens.", better="lower")
    columns = (*_COLUMNS, cost) if price else _COLUMNS
    rows = [
        replace(_row(row, marks.get(row.case.id, ""), group, columns), emphasis=_emphasis(row, pick))
        for group, of in groups.items()
        for row in of
    ]
    title = f"{run.info.suite_name} · run {run.info.run_id} · {run.info.state}"
    return Table(one_line(title), _CAPTION, (*CASE_FIELDS, *columns), tuple(rows))


def _row(row: CaseSummary, mark: str, group: str, columns: Sequence[CaseColumn]) -> TableRow:
    cells = case_cells(row.case, (one_line(row.case.label) or "unnamed") + mark)
    if not row.measured:
        return TableRow({**cells, "status": row.status}, group, one_line(_ending(row)))
    return TableRow({**cells, **column_cells(columns, row)}, group)


def _ending(row: CaseSummary) -> str:
    """Outcome of *row*; reasons that many cases may share are printed once below the table."""
    if row.reason.startswith(NOT_LAUNCHED_TEXT):
        return NOT_LAUNCHED_TEXT
    if row.status == Status.PREPARE_FAILED:
        return f"{row.status}: {row.reason.partition(': ')[0]}"
    why = (row.failure.user_place if row.failure else "") or row.reason
    return f"{row.status}: {why}" if why else row.status


def _emphasis(row: CaseSummary, pick: Candidate | None) -> Emphasis:
    if row.failed and row.failure_status not in (Status.UNSUPPORTED, Status.CANCELLED):
        return "bad"
    if row.differs or row.verdicts_of("bad"):
        return "bad"
    if row.degraded:
        return "doubtful"
    return "best" if pick and pick.id == row.case.id else ""


def overview_text(run: RunAnalysis, width: int = 80, paint: Painter = no_color) -> str:
    """Table of *run*, its findings in words, and the meaning of its columns.

    No line is wider than *width* (72 at least) except for the path of a log, which is never broken.
    """
    cases, notes, table = run.cases, run.parity.footnotes, overview_table(run)
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


def run_markdown(run: RunAnalysis) -> str:
    """Recommendation, table of all cases, key findings and failures."""
    info, best = run.info, recommend(run)
    notes = [f"{mark} {sentence}" for mark, sentence in run.parity.footnotes.sentences.items()]
    return join_blocks(
        f"## distbench: {escape_markdown(info.suite_name)}",
        f"**{escape_markdown(best.headline)}**",
        bullets(best.reasons),
        details(f"All {len(run.cases)} cases", overview_table(run).to_markdown()),
        details("Key findings", bullets([*notes, *key_findings(run)])),
        *(details(kind.capitalize(), bullets(verdict_sentences(run, kind))) for kind in run.verdict_kinds),
        details("Failed or unsupported here", bullets(failure_sentences(run))),
        f"<sub>run {escape_markdown(info.run_id)}, {escape_markdown(info.created)}, distbench "
        f"{escape_markdown(info.version)}; "
        "speeds: mean over trials ± half the 95% interval; peak memory: largest trial; "
        "else median ± half the range; "
        "↑ higher, ↓ lower is better</sub>",
    )


def view_markdown(sheet: Table) -> str:
    """One view: its title, table, caption and notes."""
    return join_blocks(
        f"### {escape_markdown(sheet.title)}",
        sheet.to_markdown(),
        bullets(sheet.notes),
        f"<sub>{escape_markdown(sheet.caption)}</sub>",
    )
