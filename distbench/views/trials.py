"""The view ``trials``: every trial, so that nobody has to believe a median."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from distbench.analysis.run import AnalysedRun
from distbench.analysis.summary import THROUGHPUT, CaseSummary, trials_of
from distbench.record import Record
from distbench.report.figures import GREY, Chart, Shown, Style, bars_height, drawn, hover, scatter
from distbench.report.sheet import Field, Row, Sheet
from distbench.report.view import CASE, View, case_cells
from distbench.units import number_text

_OFFSET = 0.12


class TrialsView(View):
    """Every trial, so that nobody has to believe a median."""

    title: ClassVar[str] = "Trials"
    place: ClassVar[int] = 110
    is_behind: ClassVar[bool] = True
    caption: ClassVar[str] = "Throughput of every measured trial, higher is better."
    fields: ClassVar[tuple[Field, ...]] = (
        *CASE,
        Field("round", "", "Which trial of the case, from 0 on.", type="bigint"),
        Field("trial", "trial", "Number of the trial, from 1 on.", type="bigint"),
        Field(
            "tokens_per_s", "tokens/s", "Throughput of all ranks.", "tokens/s", "higher", format=number_text
        ),
        Field("disturbed", "disturbed", "Why the trial is not compared; empty if it is.", type="varchar"),
    )

    def sheet(self, run: AnalysedRun) -> Sheet:
        """A row for each trial, those of the fastest case first."""
        trials = trials_of(run.measured, THROUGHPUT)
        rows = [row for row in run.cases if row.case.id in trials]
        every = Shown.of(rows, run, len(rows))
        return self.made([_row(row, every, trial) for row in every.rows for trial in trials[row.case.id]])

    def charts(self, run: AnalysedRun) -> list[Chart]:
        """Every trial as a mark, if any has a throughput."""
        trials = trials_of(run.measured, THROUGHPUT)
        rows = [row for row in run.cases if row.case.id in trials]
        if not rows:
            return []
        shown, style = Shown.of(rows, run), Style.of(run.cases)
        noisy = sum(bool(trial.degraded) for each in trials.values() for trial in each)
        strips = [_strip(row, i, trials[row.case.id], style) for i, row in enumerate(shown.rows)]
        return [
            Chart(
                "trials-throughput",
                "Throughput of every trial",
                "Each mark is one trial, the upright stroke the median that counts; further right is "
                "better, and marks close together are a steady case. Trials of a case are drawn one below "
                "the other in the order they ran. Hollow: on a noisy machine, used only if the case has "
                f"no undisturbed trial. The axis does not begin at 0.{shown.left_out}",
                drawn(
                    [*strips, _medians(shown.rows)],
                    "tokens/s (higher is better)",
                    "",
                    yaxis=shown.axis(shown.rows),
                ),
                self.sheet(run),
                finding=f"{sum(map(len, trials.values())):,} trials, {noisy:,} of them disturbed.",
                height=bars_height(len(shown.rows)),
            )
        ]


def _row(row: CaseSummary, shown: Shown, trial: Record) -> Row:
    return Row(
        {
            **case_cells(row.case, shown.names[row.case.id]),
            "round": trial.round,
            "trial": trial.round + 1,
            "tokens_per_s": trial.values[THROUGHPUT],
            "disturbed": trial.degraded,
        }
    )


def _strip(row: CaseSummary, place: int, trials: Sequence[Record], style: Style) -> dict[str, Any]:
    look = style.marker(row.case.strategy.name)
    hollow = f"{look['symbol']}-open"
    middle = (len(trials) - 1) / 2
    symbols = [hollow if trial.degraded else look["symbol"] for trial in trials]
    return scatter(
        "",
        [trial.values[THROUGHPUT] for trial in trials],
        [place + (i - middle) * _OFFSET * min(1, 5 / len(trials)) for i in range(len(trials))],
        hovers=[
            hover(
                row.case.name,
                f"trial {trial.round + 1}: {number_text(trial.values[THROUGHPUT])} tokens/s",
                f"disturbed: {trial.degraded}" if trial.degraded else "",
            )
            for trial in trials
        ],
        cases=[row.case.id for _ in trials],
        marker=look | {"size": 8, "symbol": symbols},
        showlegend=False,
    )


def _medians(rows: Sequence[CaseSummary]) -> dict[str, Any]:
    known = {i: row.values[THROUGHPUT].value for i, row in enumerate(rows) if THROUGHPUT in row.values}
    stroke = {"symbol": "line-ns", "size": 18, "line": {"width": 2, "color": GREY}}
    return scatter("", known.values(), known, marker=stroke, hoverinfo="skip", showlegend=False)
