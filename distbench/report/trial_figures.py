"""The chart of every trial, so that nobody has to believe a median."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distbench.analysis.summary import THROUGHPUT, CaseSummary
from distbench.analysis.text import one_line
from distbench.analysis.trials import TrialValue, trial_values
from distbench.record import Record
from distbench.report.figures import Chart, Shown, Style, bars_height, drawn, hover
from distbench.units import number_text

_OFFSET = 0.12


def charts(cases: Sequence[CaseSummary], records: Sequence[Record], style: Style) -> list[Chart]:
    """Return the chart, if any trial has a throughput."""
    trials = trial_values(records, THROUGHPUT)
    rows = [row for row in cases if row.case.id in trials]
    if not rows:
        return []
    shown = Shown.of(rows, cases)
    every = Shown.of(rows, cases, len(rows))
    disturbed = sum(bool(trial.disturbed) for each in trials.values() for trial in each)
    layout = {"yaxis": shown.axis(shown.rows)}
    return [
        Chart(
            "trials-throughput",
            "Throughput of every trial",
            "Each mark is one trial, the upright stroke the median that counts; further right is better, and "
            "marks close together are a steady case. Trials of a case are drawn one below the other in the "
            "order they ran. Hollow: on a disturbed machine, which does not count where another trial was "
            f"sound. The axis does not begin at 0.{shown.left_out}",
            drawn(
                [*(_strip(row, i, trials, style) for i, row in enumerate(shown.rows)), _medians(shown.rows)],
                "tokens/s (higher is better)",
                "",
                **layout,
            ),
            ["case", "trial", "tokens/s", ""],
            [
                [
                    every.names[row.case.id],
                    str(trial.round + 1),
                    number_text(trial.value),
                    one_line(f"disturbed: {trial.disturbed}" if trial.disturbed else ""),
                ]
                for row in every.rows
                for trial in trials[row.case.id]
            ],
            told=f"{sum(map(len, trials.values())):,} trials, {disturbed:,} of them disturbed.",
            height=bars_height(len(shown.rows)),
        )
    ]


def _strip(row: CaseSummary, place: int, trials: dict[str, list[TrialValue]], style: Style) -> dict[str, Any]:
    mine = trials[row.case.id]
    look = style.marker(row.case.strategy.name)
    hollow = f"{look['symbol']}-open"
    middle = (len(mine) - 1) / 2
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "",
        "showlegend": False,
        "x": [trial.value for trial in mine],
        "y": [place + (i - middle) * _OFFSET * min(1, 5 / len(mine)) for i in range(len(mine))],
        "hovertext": [
            hover(
                row.case.name,
                f"trial {trial.round + 1}: {number_text(trial.value)} tokens/s",
                f"disturbed: {trial.disturbed}" if trial.disturbed else "",
            )
            for trial in mine
        ],
        "hoverinfo": "text",
        "customdata": [row.case.id for _ in mine],
        "marker": look
        | {"size": 8, "symbol": [hollow if trial.disturbed else look["symbol"] for trial in mine]},
    }


def _medians(rows: Sequence[CaseSummary]) -> dict[str, Any]:
    known = [(i, row) for i, row in enumerate(rows) if THROUGHPUT in row.values]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "",
        "showlegend": False,
        "x": [row.values[THROUGHPUT].value for _, row in known],
        "y": [i for i, _ in known],
        "hoverinfo": "skip",
        "marker": {"symbol": "line-ns", "size": 18, "line": {"width": 2, "color": "#888888"}},
    }
