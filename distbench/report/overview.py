"""Table of all cases of a run, at the top of the terminal output and of Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from distbench.analysis.case_names import name_parts
from distbench.analysis.case_summary import COMMUNICATION, LOSS, MEMORY, THROUGHPUT, UNMEASURED, CaseSummary
from distbench.analysis.choice import Candidate
from distbench.analysis.cost import COST_PER_BILLION_TOKENS
from distbench.analysis.run import RunAnalysis
from distbench.core.grouping import group_by
from distbench.core.text import one_line
from distbench.core.units import format_number
from distbench.record import NOT_LAUNCHED_TEXT, Status
from distbench.tables.table import Table, TableCell, TableRow
from distbench.tables.text_table import Emphasis
from distbench.views.base import (
    CASE_FIELDS,
    RELATIVE_COLUMN,
    CaseColumn,
    case_cells,
    column_cells,
    rate_column,
    spread_cell,
)

_CAPTION = (
    "tokens/s: mean over trials ± half its 95% interval, higher is better; x ddp: tokens/s relative to "
    "ddp at the same world size; peak mem: most bytes of tensors on any rank in any trial, lower is better; "
    "comm/step: payload of a rank's collectives per step, lower is better; loss: of the last timed step; "
    "1/3 ok: measured trials, of all; *: measured on a noisy machine, not compared; –: not known, "
    "see distbench show --json for the reason."
)


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
    CaseColumn("status", "status", "How the case ended.", type="varchar", read=_status_cell),
    CaseColumn(THROUGHPUT, "tokens/s", "Mean over trials.", "tokens/s", "higher", read=_speed_cell),
    RELATIVE_COLUMN,
    CaseColumn(MEMORY, "peak mem", "Peak memory of any rank in any trial.", "B", "lower"),
    CaseColumn(COMMUNICATION, "comm/step", "Payload of a rank's collectives per step.", "B", "lower"),
    CaseColumn(LOSS, "loss", "Loss of the last timed step.", "", "lower", format=_loss),
)


def overview_table(run: RunAnalysis) -> Table:
    """Table of all cases of *run* to be measured, grouped by the part of their names after the strategy."""
    marks = run.parity.footnotes.marks
    asked = [row for row in run.cases if row.status != UNMEASURED]
    groups = group_by(asked, lambda row: "/".join(name_parts(row.case)))
    pick = run.selection.pick
    price = f"{run.device_cost.currency}/1e9 tok" if run.device_cost else ""
    cost = rate_column(COST_PER_BILLION_TOKENS, price, "Money for 1e9 tokens.", better="lower")
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
