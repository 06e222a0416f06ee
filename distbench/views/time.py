"""The view ``time``: where a step goes, and what came before the first one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distbench.analysis.case_summary import CaseSummary
from distbench.analysis.run import RunAnalysis
from distbench.analysis.step_timeline import step_shares
from distbench.core.columns import Better
from distbench.core.units import format_duration, format_value
from distbench.tables.table import Table, TableCell
from distbench.views.base import CASE_FIELDS, CaseColumn, View, absence_reasons
from distbench.views.charts.figures import Bar, CaseAxis, Chart, ChartSelection, make_figure, stacked_bars
from distbench.views.charts.palette import STEP_PARTS

_RATIO = "{:.2f}".format


def _share(name: str, heading: str, doc: str, better: Better = None) -> CaseColumn:
    return CaseColumn(
        name,
        heading,
        f"Share of a profiled step {doc}.",
        better=better,
        format="{:.0%}".format,
        read=lambda row: _share_cell(row, name),
    )


_SHARES = (
    _share("data", "data", "spent waiting for data"),
    _share("forward", "forw.", "in the forward pass"),
    _share("backward", "backw.", "in the backward pass"),
    _share("optimizer", "optim.", "in the optimizer"),
    _share("exposed_comm", "comm", "in communication that no computation hides", "lower"),
    _share("other", "other", "in work outside of these parts"),
    _share("idle", "idle", "in which nothing runs", "lower"),
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
        "so read them as shares. comm: communication that no computation hides. idle: nothing runs, as when "
        "Python runs between operations, which the profiler lengthens. imbal.: imbalance, work of "
        "the slowest rank over that of the median rank, 1 is best. first: the very first step; build: model, "
        "engine and optimizer."
    )
    fields = (
        *CASE_FIELDS,
        CaseColumn("step_s", "step", "Step time without a profiler, mean over trials.", "s", "lower"),
        *_SHARES,
        CaseColumn("profile_slowdown", "slow", "Profiled over unprofiled step time.", format=_RATIO),
        CaseColumn(
            "imbalance", "imbal.", "Slowest rank's work over the median's.", "", "lower", format=_RATIO
        ),
        CaseColumn("first_step_s", "first", "Time of the very first step.", "s", "lower"),
        CaseColumn("build_s", "build", "Time to build model, engine and optimizer.", "s", "lower"),
    )

    def table(self, run: RunAnalysis) -> Table:
        measured = [row for row in run.cases if "step_s" in row.values]
        names = run.short_names(measured)
        return self.make_table(
            [self.case_row(row, names[row.case.id]) for row in measured], _absence_notes(names, measured)
        )

    def charts(self, run: RunAnalysis) -> Iterator[Chart]:
        shown = ChartSelection.fastest(run, lambda row: _part_seconds(row) or None)
        if not shown.items:
            return
        bars = [
            Bar(
                row.case.name,
                row.case.id,
                times,
                {part: f"{share:.1%} of the step" for part, share in step_shares(row).items()},
            )
            for row, _, times in shown.items
        ]
        # older records have no part for idle time
        labels = {part: label for part, label in _PARTS.items() if any(part in bar.parts for bar in bars)}
        axis = CaseAxis.of((row, f"{name} · {_step_text(row)}") for row, name, _ in shown.items)
        most, name = max((step_shares(row)["exposed_comm"], name) for row, name, _ in shown.items)
        yield Chart(
            "time-parts",
            "Parts of a step",
            "Each bar is a step without the profiler: its length is the step time, lower is better. "
            "Its parts are the shares in the profiled steps (mean over ranks; in the order of the "
            "legend).",
            make_figure(
                stacked_bars(
                    bars, labels, STEP_PARTS, lambda _, time: format_value(time, "s"), 1e-3, axis.positions
                ),
                "ms of a step (lower is better)",
                rows=axis.labels,
                barmode="stack",
            ),
            finding=f"Most exposed communication: {name}, {most:.0%} of its step.",
            left_out=shown.truncation_note,
        )


def _part_seconds(row: CaseSummary) -> dict[str, float]:
    """Seconds of each part in a step without the profiler; empty if any is unknown."""
    step = row.values.get("step_s")
    return {part: share * step.value for part, share in step_shares(row).items()} if step else {}


def _step_text(row: CaseSummary) -> str:
    return format_duration(row.values["step_s"].value) if "step_s" in row.values else ""


def _share_cell(row: CaseSummary, part: str) -> TableCell:
    shares = step_shares(row)
    if part in shares:
        return TableCell(shares[part])
    older = "its record is older than this part of a step" if shares else ""
    return TableCell(None, reason=older or row.absence_reasons.get("profile_step_s", ""))


def _absence_notes(names: dict[str, str], rows: Sequence[CaseSummary]) -> list[str]:
    reasons = absence_reasons(rows, ("profile_step_s",), names)
    return [f"No breakdown of {', '.join(cases)}: {reason}." for (_, reason), cases in reasons.items()]
