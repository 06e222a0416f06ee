"""The view ``trials``: every trial, not only the means."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from distbench.analysis.case_summary import THROUGHPUT, CaseSummary, trials_with
from distbench.analysis.run import RunAnalysis
from distbench.core.units import format_number
from distbench.record import Record
from distbench.tables.table import Field, Table, TableRow
from distbench.views.base import CASE_FIELDS, View, case_cells
from distbench.views.charts.figures import (
    GREY,
    MAX_CHART_CASES,
    CaseStyle,
    Chart,
    ChartSelection,
    hover,
    make_figure,
    scatter,
)

_OFFSET = 0.12


class TrialsView(View):
    """A row and a mark for each trial, by number of devices, and of these the fastest case first."""

    title = "Trials"
    order = 110
    collapsed = True
    table_in_charts = True
    caption = "Throughput of every measured trial, higher is better."
    fields = (
        *CASE_FIELDS,
        Field("round", "", "Which trial of the case, from 0 on.", type="bigint"),
        Field("trial", "trial", "Number of the trial, from 1 on.", type="bigint"),
        Field(
            "tokens_per_s", "tokens/s", "Of all ranks together.", "tokens/s", "higher", format=format_number
        ),
        Field("disturbed", "disturbed", "Why the trial is not compared; empty if it is.", type="varchar"),
    )

    def table(self, run: RunAnalysis) -> Table:
        shown = _shown(run, len(run.cases))
        return self.make_table(
            [_row(row, name, trial) for row, name, trials in shown.items for trial in trials]
        )

    def charts(self, run: RunAnalysis) -> Iterator[Chart]:
        table, shown, style = self.table(run), _shown(run), CaseStyle.for_cases(run.cases)
        if not shown.items:
            return
        noisy = sum(bool(row.value("disturbed")) for row in table.rows)
        strips = [
            _trial_marks(row, place, trials, style) for place, (row, _, trials) in enumerate(shown.items)
        ]
        yield Chart(
            "trials-throughput",
            "Throughput of every trial",
            "Each mark is one trial, the vertical stroke the mean that counts; further right is "
            "better, and close marks mean a steady case. Trials of a case are shown from top to bottom "
            "in the order in which they ran. Hollow: on a noisy machine, used only if the case has no "
            "undisturbed trial. The axis does not begin at 0.",
            make_figure(
                [*strips, _mean_marks([row for row, *_ in shown.items])],
                "tokens/s (higher is better)",
                rows=shown.names,
            ),
            table,
            finding=f"{len(table.rows):,} trials, {noisy:,} of them disturbed.",
            left_out=shown.truncation_note,
        )


def _shown(run: RunAnalysis, most: int = MAX_CHART_CASES) -> ChartSelection[list[Record]]:
    trials = trials_with(run.timed_records, THROUGHPUT)
    return ChartSelection.fastest(run, lambda row: trials.get(row.case.id), most)


def _row(row: CaseSummary, name: str, trial: Record) -> TableRow:
    return TableRow(
        {
            **case_cells(row.case, name),
            "round": trial.round,
            "trial": trial.round + 1,
            "tokens_per_s": trial.values[THROUGHPUT],
            "disturbed": trial.degraded,
        }
    )


def _trial_marks(row: CaseSummary, place: int, trials: Sequence[Record], style: CaseStyle) -> dict[str, Any]:
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
                f"trial {trial.round + 1}: {format_number(trial.values[THROUGHPUT])} tokens/s",
                f"disturbed: {trial.degraded}" if trial.degraded else "",
            )
            for trial in trials
        ],
        cases=[row.case.id for _ in trials],
        marker=look | {"size": 8, "symbol": symbols},
        showlegend=False,
    )


def _mean_marks(rows: Sequence[CaseSummary]) -> dict[str, Any]:
    known = {i: row.values[THROUGHPUT].value for i, row in enumerate(rows) if THROUGHPUT in row.values}
    stroke = {"symbol": "line-ns", "size": 18, "line": {"width": 2, "color": GREY}}
    return scatter("", known.values(), known, marker=stroke, hoverinfo="skip", showlegend=False)
