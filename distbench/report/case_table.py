"""Table of all cases on the page: ranked, grouped by number of devices, one line per case."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from distbench.analysis.case_names import shared_parts
from distbench.analysis.case_summary import (
    LOSS,
    MEMORY,
    REFERENCE_LABEL,
    THROUGHPUT,
    CaseSummary,
)
from distbench.analysis.cost import COST_PER_BILLION_TOKENS
from distbench.analysis.job_results import Gravity
from distbench.analysis.losses.case_losses import DIFFERENT_BY_DESIGN
from distbench.analysis.memory import smallest_device_memory
from distbench.analysis.run import RunAnalysis
from distbench.analysis.step_timeline import step_shares
from distbench.analysis.verdicts import LOSS_VERDICT
from distbench.analysis.wire_traffic import WIRE_BYTES
from distbench.core.case import CaseField
from distbench.core.grouping import group_by
from distbench.core.text import one_line, shorten
from distbench.core.units import format_bytes, format_count
from distbench.tables.table import PERCENT, TableCell
from distbench.tables.text_table import Emphasis
from distbench.views.base import RELATIVE_COLUMN, CaseColumn, column_cells, rate_column, spread_cell

_MAX_NAME_LENGTH = 44
# ranks that share rows have larger parts of the batch
_WORK_EXCEPTIONS: tuple[CaseField, ...] = ("strategy", "batch.micro_batch_size")
_MICRO_BATCH = re.compile(r"^mb(?=\d+$)")
_BARRED = (THROUGHPUT, MEMORY, "step_s", "exposed")
"""Columns with a bar in each cell: its share of the largest value in the group."""
_FOLDED = (WIRE_BYTES, LOSS, LOSS_VERDICT)
"""Columns that are shown only on request."""
_LOOKS: dict[Gravity, Emphasis] = {"ok": "good", "bad": "bad", "unknown": ""}


@dataclass(frozen=True)
class CaseRow:
    """A case in the table."""

    row: CaseSummary
    name: str
    """Name without the parts that all cases of the group share."""
    mark: str
    standing: str
    """``recommended``, ``tied`` with that case, or empty."""
    cells: Mapping[str, TableCell]
    """Name of a column -> its cell; the emphasis is that of a verdict."""
    shares: Mapping[str, float]
    """Name of a column -> length of the cell's bar, from 0 to 1."""
    work: int
    """Number of its work: throughput is relative within it."""


@dataclass(frozen=True)
class CaseTable:
    """Columns with any value, groups of rows, and columns without values."""

    columns: Sequence[CaseColumn]
    """Those of text are verdicts."""
    groups: Mapping[str, Sequence[CaseRow]]
    unknown: Mapping[str, str]
    """Heading of a column that is left out -> reason why no case has it."""
    bases: Sequence[str]
    """Labels of the cases that others can be relative to."""
    folded: Sequence[str] = _FOLDED
    """Names of the columns that are shown only on request."""


def make_case_table(run: RunAnalysis) -> CaseTable:
    """Table of the cases of *run*: those of the recommendation first, the fastest first."""
    every = [*_SPEED_COLUMNS, *_MEMORY, _headroom(run), *_STEP_COLUMNS, *_price(run), *_verdicts(run)]
    measured = [row for row in run.cases if row.measured]
    bases = list(dict.fromkeys(one_line(row.case.label) for row in run.cases if row.comparable))
    # without ddp, readers may still choose the base of relative numbers
    columns = [
        each
        for each in every
        if any(each.cell(row).value is not None for row in measured) or (each is _RELATIVE and bases)
    ]
    unknown = {
        each.heading: next((why for row in measured if (why := each.cell(row).reason)), "")
        for each in every
        if measured and each not in columns
    }
    by_size = sorted(group_by(run.cases, lambda row: row.case.world_size).items(), reverse=True)
    works = {work: place for place, work in enumerate(dict.fromkeys(map(_work, run.cases)))}
    groups = {_title(size, rows): _rows(run, rows, columns, works) for size, rows in by_size}
    return CaseTable(columns, groups, {key: why for key, why in unknown.items() if why}, bases)


def _work(row: CaseSummary) -> object:
    return row.case.work_key(_WORK_EXCEPTIONS)


def _title(size: int, rows: Sequence[CaseSummary]) -> str:
    shared = [part for part in shared_parts([row.case for row in rows]) if part != f"ws{size}"]
    spelled = [_MICRO_BATCH.sub("micro-batch ", part) for part in shared]
    return " · ".join([format_count(size, "device"), *spelled])


def _rows(
    run: RunAnalysis, rows: Sequence[CaseSummary], columns: Sequence[CaseColumn], works: Mapping[object, int]
) -> list[CaseRow]:
    tied, pick = run.selection.tied, run.selection.pick
    standings = {one.id: "tied" for one in tied} | ({pick.id: "recommended"} if pick else {})
    names, marks = run.short_names(rows), run.parity.footnotes.marks
    cells = {row.case.id: column_cells(columns, row) for row in rows}
    most = {
        each.name: max(_number(of[each.name]) for of in cells.values())
        for each in columns
        if each.name in _BARRED
    }
    return [
        CaseRow(
            row,
            shorten(names[row.case.id].removesuffix(marks.get(row.case.id, "")), _MAX_NAME_LENGTH),
            marks.get(row.case.id, ""),
            standings.get(row.case.id, ""),
            cells[row.case.id],
            {
                name: _number(cells[row.case.id][name]) / top
                for name, top in most.items()
                if top > 0 and cells[row.case.id][name].value is not None
            },
            works[_work(row)],
        )
        for row in sorted(rows, key=_rank)
    ]


def _rank(row: CaseSummary) -> tuple[bool, bool, float]:
    pace = row.values.get(THROUGHPUT)
    return not row.measured, not row.comparable, -pace.value if pace else 0.0


def _number(cell: TableCell) -> float:
    return float(cell.value) if isinstance(cell.value, int | float) else 0.0


def _speed(row: CaseSummary) -> TableCell:
    return spread_cell(row, THROUGHPUT, digits=1)


def _exposed(row: CaseSummary) -> TableCell:
    """Share of a profiled step in communication that no computation hides."""
    share = step_shares(row).get("exposed_comm")
    reason = row.absence_reasons.get("profile_exposed_comm_s", "") if share is None else ""
    return TableCell(share, reason=reason)


def _trials(row: CaseSummary) -> TableCell:
    every = row.trials + row.failed
    noisy = f", {row.degraded_trials} noisy" if row.degraded_trials else ""
    return TableCell(row.trials, f"{row.trials} of {every}{noisy}" if row.failed else f"{row.trials}{noisy}")


def _price(run: RunAnalysis) -> list[CaseColumn]:
    cost = run.device_cost
    heading = f"{cost.currency} per 1e9 tokens" if cost else ""
    return [rate_column(COST_PER_BILLION_TOKENS, heading, better="lower")] if cost else []


def _headroom(run: RunAnalysis) -> CaseColumn:
    """Device memory beyond the need of the rank with the highest peak."""
    needs = {one.id: one.memory for one in run.candidates}

    def read(row: CaseSummary) -> TableCell:
        if row.case.device == "cpu":
            return TableCell(
                None, reason="there is no limit per rank, because the ranks share the memory of the host"
            )
        limit, needed = smallest_device_memory(row.representative_trial), needs[row.case.id]
        if limit is None or needed is None:
            return TableCell(None, reason="the memory of a device is not recorded")
        left = limit - needed
        return TableCell(left, f"{format_bytes(left)} ({left / limit:.0%})")

    return CaseColumn("headroom", "headroom", "Free memory of a device.", "B", "higher", read=read)


def _verdicts(run: RunAnalysis) -> list[CaseColumn]:
    return [
        CaseColumn(
            kind, kind, f"Verdict of the check of {kind}.", type="varchar", read=partial(_verdict_cell, kind)
        )
        for kind in run.verdict_kinds
    ]


def _verdict_cell(kind: str, row: CaseSummary) -> TableCell:
    verdict = row.verdicts.get(kind)
    if verdict is None:
        return TableCell(None)
    # neither good nor bad until a convergence run decides
    look = "" if verdict.word == DIFFERENT_BY_DESIGN else _LOOKS[verdict.gravity]
    return TableCell(verdict.word.removeprefix("equivalent "), emphasis=look)


_RELATIVE = replace(RELATIVE_COLUMN, heading=f"× {REFERENCE_LABEL}")
_SPEED_COLUMNS = (
    CaseColumn(THROUGHPUT, "tokens/s", better="higher", read=_speed),
    rate_column("tokens_per_s_per_device", "per device"),
    CaseColumn("mfu", "MFU", better="higher", format=PERCENT),
    _RELATIVE,
)
_MEMORY = (CaseColumn(MEMORY, "peak memory", unit="B", better="lower"),)
_STEP_COLUMNS = (
    CaseColumn("step_s", "step", unit="s", better="lower"),
    CaseColumn("exposed", "exposed", better="lower", format="{:.0%}".format, read=_exposed),
    CaseColumn(WIRE_BYTES, "comm/step", unit="B", better="lower"),
    rate_column("energy_per_token", "J/token", better="lower"),
    CaseColumn(LOSS, "final loss", better="lower", format="{:.4f}".format),
    CaseColumn("trials", "trials", better="higher", format="{:,}".format, read=_trials),
)
