"""The view ``time``: where a step goes, and what came before the first one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from distbench.analysis.run import AnalysedRun
from distbench.analysis.summary import CaseSummary
from distbench.grouping import gathered
from distbench.report.figures import Chart, Shown, bars_height, bars_of, drawn
from distbench.report.sheet import Cell, Field, Row, Sheet
from distbench.report.view import CASE, View, case_cells, measured_cell
from distbench.units import duration_text

_SHARE, _RATIO = "{:.0%}".format, "{:.2f}".format
_PARTS = {
    "data": "data",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "exposed_comm": "exposed communication",
    "other": "other",
}


class TimeView(View):
    """Where a step goes, and what came before the first one."""

    title: ClassVar[str] = "Where time goes"
    place: ClassVar[int] = 30
    caption: ClassVar[str] = (
        "step: step time without a profiler, median over trials. The parts are shares of a profiled step "
        "(mean over ranks; they add up to 100%); the profiler slows the step by the factor in column slow, "
        "so read them as shares. comm: communication that no computation hides. imbal.: imbalance, work of "
        "the slowest rank over that of the median rank, 1 is best. first: the very first step; build: model, "
        "engine and optimizer."
    )
    fields: ClassVar[tuple[Field, ...]] = (
        *CASE,
        Field("step_s", "step", "Step time without a profiler, median over trials.", "s", "lower"),
        Field("data", "data", "Share of a profiled step spent waiting for data.", format=_SHARE),
        Field("forward", "forw.", "Share of a profiled step in the forward pass.", format=_SHARE),
        Field("backward", "backw.", "Share of a profiled step in the backward pass.", format=_SHARE),
        Field("optimizer", "optim.", "Share of a profiled step in the optimizer.", format=_SHARE),
        Field(
            "exposed_comm",
            "comm",
            "Share in communication that no computation hides.",
            "",
            "lower",
            format=_SHARE,
        ),
        Field("other", "other", "Share of a profiled step in everything else.", format=_SHARE),
        Field("profile_slowdown", "slow", "Profiled over unprofiled step time.", format=_RATIO),
        Field(
            "imbalance",
            "imbal.",
            "Work of the slowest rank over the median rank's.",
            "",
            "lower",
            format=_RATIO,
        ),
        Field("first_step_s", "first", "Time of the very first step.", "s", "lower"),
        Field("build_s", "build", "Time to build model, engine and optimizer.", "s", "lower"),
    )

    def sheet(self, run: AnalysedRun) -> Sheet:
        """A row for each case with a step time."""
        measured = [row for row in run.cases if "step_s" in row.values]
        names = run.names(measured)
        return self.made([_row(row, names[row.case.id]) for row in measured], _missing(names, measured))

    def charts(self, run: AnalysedRun) -> list[Chart]:
        """Parts of the profiled step, if any was profiled."""
        profiled = [row for row in run.cases if _shares(row)]
        if not profiled:
            return []
        shown = Shown.of(profiled, run)
        sheet = self.made([_row(row, shown.names[row.case.id]) for row in shown.rows])
        steps = [
            duration_text(row.values["step_s"].value) if "step_s" in row.values else "" for row in shown.rows
        ]
        layout = {
            "barmode": "stack",
            "xaxis": {"tickformat": ".0%", "range": [0, 1.001]},
            "yaxis": shown.axis(shown.rows, steps),
        }
        exposed, name = max((_shares(row)["exposed_comm"], shown.names[row.case.id]) for row in shown.rows)
        return [
            Chart(
                "time-parts",
                "Parts of a step",
                "Each bar is one profiled step (mean over ranks; parts in the order of the legend): "
                "shares, not times, because the profiler takes time too. The step time without a profiler "
                f"is next to each name; lower is better.{shown.left_out}",
                drawn(bars_of(sheet, _PARTS), "share of a step", "", **layout),
                finding=f"Most exposed communication: {name}, {exposed:.0%} of its step.",
                height=bars_height(len(sheet.rows)),
            )
        ]


def _row(row: CaseSummary, name: str) -> Row:
    reason = row.absent.get("profile_step_s", "")
    columns = ("step_s", "profile_slowdown", "imbalance", "first_step_s", "build_s")
    return Row(
        {
            **case_cells(row.case, name),
            **{part: Cell(None, reason=reason) for part in _PARTS},
            **_shares(row),
            **{column: measured_cell(row, column) for column in columns},
        }
    )


def _shares(row: CaseSummary) -> dict[str, float]:
    """Share of each part in a profiled step; empty if any of it is not known."""
    parts = {part: found.value for part in _PARTS if (found := row.values.get(f"profile_{part}_s"))}
    # each is a median over trials, and medians of parts need not add up to that of the whole
    whole = sum(parts.values())
    if len(parts) < len(_PARTS) or whole <= 0:
        return {}
    return {part: seconds / whole for part, seconds in parts.items()}


def _missing(names: dict[str, str], rows: Sequence[CaseSummary]) -> list[str]:
    reasons = gathered(
        (reason, names[row.case.id]) for row in rows if (reason := row.absent.get("profile_step_s"))
    )
    return [f"No breakdown of {', '.join(cases)}: {reason}." for reason, cases in reasons.items()]
