"""The view ``time``: where a step goes, and what came before the first one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from distbench.analysis.case_summary import CaseSummary
from distbench.analysis.run import RunAnalysis
from distbench.core.grouping import group_pairs
from distbench.core.units import format_duration
from distbench.report.axes import CaseAxis
from distbench.report.figures import Chart, ChartSelection, make_figure, stacked_bars
from distbench.report.palette import STEP_PARTS
from distbench.report.view import CASE_FIELDS, View, case_cells, value_cell
from distbench.tables.table import Field, Table, TableCell, TableRow

_RATIO = "{:.2f}".format


def _share(name: str, heading: str, doc: str) -> Field:
    return Field(name, heading, f"Share of a profiled step {doc}.", format="{:.0%}".format)


_SHARES = (
    _share("data", "data", "spent waiting for data"),
    _share("forward", "forw.", "in the forward pass"),
    _share("backward", "backw.", "in the backward pass"),
    _share("optimizer", "optim.", "in the optimizer"),
    replace(_share("exposed_comm", "comm", "in communication that no computation hides"), better="lower"),
    _share("other", "other", "in everything else"),
)
_PARTS = {field.name: field.name for field in _SHARES} | {"exposed_comm": "exposed communication"}
"""Part of a step -> label in the legend."""


class TimeView(View):
    """A row for each case with a step time; a chart of the parts of the profiled steps."""

    title = "Where time goes"
    order = 30
    caption = (
        "step: step time without a profiler, mean over trials. The parts are shares of a profiled step "
        "(mean over ranks; they add up to 100%); the profiler slows the step by the factor in column slow, "
        "so read them as shares. comm: communication that no computation hides. imbal.: imbalance, work of "
        "the slowest rank over that of the median rank, 1 is best. first: the very first step; build: model, "
        "engine and optimizer."
    )
    fields = (
        *CASE_FIELDS,
        Field("step_s", "step", "Step time without a profiler, mean over trials.", "s", "lower"),
        *_SHARES,
        Field("profile_slowdown", "slow", "Profiled over unprofiled step time.", format=_RATIO),
        Field("imbalance", "imbal.", "Slowest rank's work over the median's.", "", "lower", format=_RATIO),
        Field("first_step_s", "first", "Time of the very first step.", "s", "lower"),
        Field("build_s", "build", "Time to build model, engine and optimizer.", "s", "lower"),
    )

    def table(self, run: RunAnalysis) -> Table:
        measured = [row for row in run.cases if "step_s" in row.values]
        names = run.short_names(measured)
        return self.make_table(
            [_row(row, names[row.case.id]) for row in measured], _absence_notes(names, measured)
        )

    def charts(self, run: RunAnalysis) -> Iterator[Chart]:
        shown = ChartSelection.fastest(run, lambda row: _part_seconds(row) or None)
        if not shown.items:
            return
        fields = (*CASE_FIELDS, *(replace(field, unit="s", format=None) for field in _SHARES))
        rows = [TableRow({**case_cells(row.case, name), **times}) for row, name, times in shown.items]
        axis = CaseAxis.of((row, f"{name} · {_step_text(row)}") for row, name, _ in shown.items)
        most, name = max((_shares(row)["exposed_comm"], name) for row, name, _ in shown.items)
        yield Chart(
            "time-parts",
            "Parts of a step",
            "Each bar is a step without the profiler: its length is the step time, lower is better. "
            "Its parts are the shares in the profiled steps (mean over ranks; in the order of the "
            f"legend).{shown.truncation_note}",
            make_figure(
                stacked_bars(
                    Table("", "", fields, tuple(rows)), _PARTS, STEP_PARTS, 1e-3, _share_of, axis.positions
                ),
                "ms of a step (lower is better)",
                rows=axis.labels,
                barmode="stack",
            ),
            finding=f"Most exposed communication: {name}, {most:.0%} of its step.",
        )


def _part_seconds(row: CaseSummary) -> dict[str, float]:
    """Seconds of each part in a step without the profiler; empty if any is unknown."""
    step = row.values.get("step_s")
    return {part: share * step.value for part, share in _shares(row).items()} if step else {}


def _share_of(row: TableRow, part: str) -> list[str]:
    whole = math.fsum(float(row.value(each) or 0.0) for each in _PARTS)
    return [f"{float(row.value(part) or 0.0) / whole:.1%} of the step"] if whole else []


def _step_text(row: CaseSummary) -> str:
    return format_duration(row.values["step_s"].value) if "step_s" in row.values else ""


def _row(row: CaseSummary, name: str) -> TableRow:
    reason = row.absence_reasons.get("profile_step_s", "")
    columns = ("step_s", "profile_slowdown", "imbalance", "first_step_s", "build_s")
    return TableRow(
        {
            **case_cells(row.case, name),
            **{part: TableCell(None, reason=reason) for part in _PARTS},
            **_shares(row),
            **{column: value_cell(row, column) for column in columns},
        }
    )


def _shares(row: CaseSummary) -> dict[str, float]:
    """Share of each part in a profiled step; empty if any is unknown."""
    parts = {part: found.value for part in _PARTS if (found := row.values.get(f"profile_{part}_s"))}
    # each is a median over trials; medians of parts need not add up to the median of the whole
    whole = sum(parts.values())
    if len(parts) < len(_PARTS) or whole <= 0:
        return {}
    return {part: seconds / whole for part, seconds in parts.items()}


def _absence_notes(names: dict[str, str], rows: Sequence[CaseSummary]) -> list[str]:
    reasons = group_pairs(
        (reason, names[row.case.id]) for row in rows if (reason := row.absence_reasons.get("profile_step_s"))
    )
    return [f"No breakdown of {', '.join(cases)}: {reason}." for reason, cases in reasons.items()]
