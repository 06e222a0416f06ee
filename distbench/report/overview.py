"""Table of all cases of a run, at the top of the terminal output and of Markdown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from distbench.analysis.case_names import name_parts
from distbench.analysis.case_summary import COMMUNICATION, LOSS, MEMORY, THROUGHPUT, UNMEASURED, CaseSummary
from distbench.analysis.choice import Candidate, Requirements, select_case
from distbench.analysis.price import COST_PER_BILLION_TOKENS, device_cost
from distbench.analysis.run import RunAnalysis
from distbench.core.grouping import group_by
from distbench.core.text import one_line
from distbench.core.units import format_number
from distbench.record import NOT_LAUNCHED_TEXT, Status
from distbench.report.view import CASE_FIELDS, case_cells, rate_cell, value_cell
from distbench.tables.emphasis import Emphasis
from distbench.tables.table import Field, Table, TableCell, TableRow

_CAPTION = (
    "tokens/s: mean over trials ± half its 95% interval, higher is better; x ddp: tokens/s relative to "
    "ddp at the same world size; peak mem: most bytes of tensors on any rank in any trial, lower is better; "
    "comm/step: payload of a rank's collectives per step, lower is better; loss: of the last timed step; "
    "1/3 ok: measured trials, of all; *: measured on a noisy machine, not compared; –: not known, "
    "see distbench show --json for the reason."
)


def _loss(value: float) -> str:
    return f"{value:.4f}" if abs(value) < 100 else f"{value:.3g}"


OVERVIEW_FIELDS = (
    *CASE_FIELDS,
    Field("status", "status", "Final status of the case.", type="varchar"),
    Field(THROUGHPUT, "tokens/s", "Mean over trials.", "tokens/s", "higher"),
    Field("relative", "x ddp", "Over ddp at the same world size.", "", "higher", format="{:.2f}".format),
    Field(MEMORY, "peak mem", "Peak memory of any rank in any trial.", "B", "lower"),
    Field(COMMUNICATION, "comm/step", "Payload of a rank's collectives per step.", "B", "lower"),
    Field(LOSS, "loss", "Loss of the last timed step.", "", "lower", format=_loss),
)


def overview_table(run: RunAnalysis) -> Table:
    """Table of all cases of *run* to be measured, grouped by the part of their names after the strategy."""
    marks = run.parity.footnotes.marks
    asked = [row for row in run.cases if row.status != UNMEASURED]
    groups = group_by(asked, lambda row: "/".join(name_parts(row.case)))
    pick = select_case(run.candidates, Requirements()).pick
    rows = [
        replace(_row(row, marks.get(row.case.id, ""), group), emphasis=_emphasis(row, pick))
        for group, of in groups.items()
        for row in of
    ]
    cost = device_cost(run.info.suite)
    heading = f"{cost.currency}/1e9 tok" if cost else ""
    price = Field(COST_PER_BILLION_TOKENS, heading, "Cost of 1e9 tokens.", "", "lower", format=format_number)
    title = f"{run.info.suite_name} · run {run.info.run_id} · {run.info.state}"
    return Table(
        one_line(title), _CAPTION, (*OVERVIEW_FIELDS, price) if cost else OVERVIEW_FIELDS, tuple(rows)
    )


def estimate_text(row: CaseSummary, column: str, text: Callable[[float, float], str], digits: int = 0) -> str:
    """*column* with half its interval, or else half the range of its trials; empty if absent.

    Args:
        text: Formats a value with half the width of its interval, 0 if it has none.
    """
    estimate = row.values.get(column)
    if estimate is None:
        return ""
    known = text(estimate.value, estimate.interval.half_width if estimate.interval else 0.0)
    return (
        known
        if estimate.relative_half_width is None
        else f"{known} ±{estimate.relative_half_width:.{digits}%}"
    )


def _row(row: CaseSummary, mark: str, group: str) -> TableRow:
    name = (one_line(row.case.label) or "unnamed") + mark
    if not row.measured:
        ended = one_line(_ending(row))
        return TableRow({**case_cells(row.case, name), "status": row.status}, group, ended)
    speed = value_cell(row, THROUGHPUT)
    return TableRow(
        {
            **case_cells(row.case, name),
            "status": TableCell(row.status, _status(row)),
            THROUGHPUT: TableCell(speed.value, estimate_text(row, THROUGHPUT, _speed), speed.reason),
            "relative": TableCell(row.relative_throughput, reason=row.relative_absence),
            **{column: value_cell(row, column) for column in (MEMORY, COMMUNICATION, LOSS)},
            COST_PER_BILLION_TOKENS: rate_cell(row, COST_PER_BILLION_TOKENS),
        },
        group,
    )


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


def _status(row: CaseSummary) -> str:
    word = f"{row.trials}/{row.trials + row.failed} ok" if row.failed else row.status
    return ("differs" if row.differs else word) + ("*" if row.degraded else "")


def _speed(value: float, half: float) -> str:
    # ten million or more does not fit next to its spread
    return f"{format_number(value / 1e6, half / 1e6)} M" if value >= 1e7 else format_number(value, half)
