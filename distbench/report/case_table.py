"""Table of all cases on the page: ranked, grouped by number of devices, one line per case."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distbench.analysis.case_names import shared_parts
from distbench.analysis.case_summary import (
    COMMUNICATION,
    LOSS,
    MEMORY,
    REFERENCE_LABEL,
    THROUGHPUT,
    CaseSummary,
)
from distbench.analysis.choice import Requirements, select_case
from distbench.analysis.job_results import Gravity
from distbench.analysis.loss_deviation import DIFFERENT_BY_DESIGN
from distbench.analysis.memory import smallest_device_memory
from distbench.analysis.price import COST_PER_BILLION_TOKENS, device_cost
from distbench.analysis.run import RunAnalysis
from distbench.analysis.verdicts import LOSS_VERDICT
from distbench.core.case import CaseField
from distbench.core.grouping import group_by
from distbench.core.text import one_line, shorten
from distbench.core.units import format_bytes, format_count, format_number
from distbench.report.overview import estimate_text
from distbench.report.view import rate_cell, value_cell
from distbench.tables.table import PERCENT, Field, TableCell

_MAX_NAME_LENGTH = 44
_PARTS = ("data", "forward", "backward", "optimizer", "exposed_comm", "other")
# ranks that share rows have larger parts of the batch
_WORK_EXCEPTIONS: tuple[CaseField, ...] = ("strategy", "batch.micro_batch_size")
_MICRO_BATCH = re.compile(r"^mb(?=\d+$)")
_LOOKS: dict[Gravity, str] = {"ok": "good", "bad": "bad", "unknown": ""}
"""Gravity -> style of its badge."""


@dataclass(frozen=True)
class CaseColumn:
    """A column: its heading and the source of its cells."""

    field: Field
    read: Callable[[CaseSummary], TableCell]
    barred: bool = False
    """True if a bar in each cell shows its share of the largest value in the group."""
    folded: bool = False
    """True if it is shown only on request."""
    is_verdict: bool = False


@dataclass(frozen=True)
class CaseCell:
    """A cell for the page."""

    text: str
    value: float | str | None
    share: float | None = None
    """Length of its bar, from 0 to 1."""
    look: str = ""
    """good or bad for a verdict; else empty."""


@dataclass(frozen=True)
class CaseRow:
    """A case in the table."""

    row: CaseSummary
    name: str
    """Name without the parts that all cases of the group share."""
    mark: str
    standing: str
    """``recommended``, ``tied`` with that case, or empty."""
    word: str
    """Outcome of the case; ``differs``: it is a different training."""
    cells: Sequence[CaseCell]
    work: int
    """Number of its work: throughput is relative within it."""


@dataclass(frozen=True)
class CaseTable:
    """Columns with any value, groups of rows, and columns without values."""

    columns: Sequence[CaseColumn]
    groups: Mapping[str, Sequence[CaseRow]]
    unknown: Mapping[str, str]
    """Heading of a column that is left out -> reason why no case has it."""
    bases: Sequence[str]
    """Labels of the cases that others can be relative to."""


def make_case_table(run: RunAnalysis) -> CaseTable:
    """Table of the cases of *run*: those of the recommendation first, the fastest first."""
    every = [*_SPEED_COLUMNS, *_MEMORY, _headroom(run), *_STEP_COLUMNS, *_price(run), *_verdicts(run)]
    measured = [row for row in run.cases if row.measured]
    bases = list(dict.fromkeys(one_line(row.case.label) for row in run.cases if row.comparable))
    # without ddp, readers may still choose the base of relative numbers
    columns = [
        each
        for each in every
        if any(each.read(row).value is not None for row in measured) or (each is _RELATIVE and bases)
    ]
    unknown = {
        each.field.heading: next((why for row in measured if (why := each.read(row).reason)), "")
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
    choice = select_case(run.candidates, Requirements())
    standings = {one.id: "tied" for one in choice.tied} | (
        {choice.pick.id: "recommended"} if choice.pick else {}
    )
    names, marks = run.short_names(rows), run.parity.footnotes.marks
    most = [max((_number(each.read(row)) for row in rows), default=0.0) for each in columns]
    return [
        CaseRow(
            row,
            shorten(names[row.case.id].removesuffix(marks.get(row.case.id, "")), _MAX_NAME_LENGTH),
            marks.get(row.case.id, ""),
            standings.get(row.case.id, ""),
            "differs" if row.differs else row.status,
            [_case_cell(each, row, top) for each, top in zip(columns, most, strict=True)],
            works[_work(row)],
        )
        for row in sorted(rows, key=_rank)
    ]


def _rank(row: CaseSummary) -> tuple[bool, bool, float]:
    pace = row.values.get(THROUGHPUT)
    return not row.measured, not row.comparable, -pace.value if pace else 0.0


def _number(cell: TableCell) -> float:
    return float(cell.value) if isinstance(cell.value, int | float) else 0.0


def _case_cell(column: CaseColumn, row: CaseSummary, most: float) -> CaseCell:
    cell = column.read(row)
    share = _number(cell) / most if column.barred and most > 0 and cell.value is not None else None
    verdict = row.verdicts.get(column.field.name) if column.is_verdict else None
    # neither good nor bad until a convergence run decides
    look = _LOOKS[verdict.gravity] if verdict and verdict.word != DIFFERENT_BY_DESIGN else ""
    return CaseCell(column.field.text(cell), cell.value, share, look)


def _speed(row: CaseSummary) -> TableCell:
    cell = value_cell(row, THROUGHPUT)
    return TableCell(cell.value, estimate_text(row, THROUGHPUT, format_number, digits=1), cell.reason)


def _exposed(row: CaseSummary) -> TableCell:
    """Share of a profiled step in communication that no computation hides."""
    parts = [row.values[name].value for part in _PARTS if (name := f"profile_{part}_s") in row.values]
    whole = sum(parts)
    if len(parts) < len(_PARTS) or whole <= 0:
        return TableCell(None, reason=row.absence_reasons.get("profile_exposed_comm_s", ""))
    return TableCell(row.values["profile_exposed_comm_s"].value / whole)


def _trials(row: CaseSummary) -> TableCell:
    every = row.trials + row.failed
    noisy = f", {row.degraded_trials} noisy" if row.degraded_trials else ""
    return TableCell(row.trials, f"{row.trials} of {every}{noisy}" if row.failed else f"{row.trials}{noisy}")


def _price(run: RunAnalysis) -> list[CaseColumn]:
    cost = device_cost(run.info.suite)
    heading = f"{cost.currency} per 1e9 tokens" if cost else ""
    return [_rate(COST_PER_BILLION_TOKENS, heading, up=False)] if cost else []


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

    return CaseColumn(Field("headroom", "headroom", "Free memory of a device.", "B", "higher"), read)


def _verdict(kind: str) -> Callable[[CaseSummary], TableCell]:
    def read(row: CaseSummary) -> TableCell:
        verdict = row.verdicts.get(kind)
        return TableCell(verdict.word.removeprefix("equivalent ") if verdict else None)

    return read


def _verdicts(run: RunAnalysis) -> list[CaseColumn]:
    return [
        CaseColumn(
            Field(kind, kind, f"Verdict of the check of {kind}.", type="varchar"),
            _verdict(kind),
            folded=kind == LOSS_VERDICT,
            is_verdict=True,
        )
        for kind in run.verdict_kinds
    ]


def _column(name: str, heading: str, unit: str = "", *, up: bool, **more: Any) -> CaseColumn:
    """Column of the same name in the records, under a heading that leaves room for others."""
    text = more.pop("format", None)
    field = Field(name, heading, "", unit, "higher" if up else "lower", format=text)
    return CaseColumn(field, lambda row: value_cell(row, name), **more)


def _rate(name: str, heading: str, *, up: bool) -> CaseColumn:
    """Column of a rate, or of a price, with the digits that its interval supports."""
    field = Field(name, heading, "", better="higher" if up else "lower")
    return CaseColumn(field, lambda row: rate_cell(row, name))


_RELATIVE = CaseColumn(
    Field("relative", f"× {REFERENCE_LABEL}", better="higher", format="{:.2f}".format),
    lambda row: TableCell(row.relative_throughput, reason=row.relative_absence),
)
_SPEED_COLUMNS = (
    CaseColumn(Field(THROUGHPUT, "tokens/s", better="higher"), _speed, barred=True),
    _rate("tokens_per_s_per_device", "per device", up=True),
    _column("mfu", "MFU", up=True, format=PERCENT),
    _RELATIVE,
)
_MEMORY = (_column(MEMORY, "peak memory", "B", up=False, barred=True),)
_STEP_COLUMNS = (
    _column("step_s", "step", "s", up=False, barred=True),
    CaseColumn(Field("exposed", "exposed", better="lower", format="{:.0%}".format), _exposed, barred=True),
    _column(COMMUNICATION, "comm./step", "B", up=False, folded=True),
    _rate("energy_per_token", "J/token", up=False),
    _column(LOSS, "final loss", up=False, format="{:.4f}".format, folded=True),
    CaseColumn(Field("trials", "trials", better="higher", format="{:,}".format), _trials),
)
