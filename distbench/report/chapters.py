"""The page's figures and views in the order in which a reader asks: a chapter a question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from distbench.analysis.scaling import scaling
from distbench.analysis.summary import CaseSummary
from distbench.record import Record, of_kind
from distbench.report import (
    communication_figures,
    convergence_figures,
    equivalence_figures,
    loss_figures,
    memory_figures,
    rank_figures,
    scaling_figures,
    throughput_figures,
    time_figures,
    trial_figures,
    views,
)
from distbench.report.figures import Chart, Style
from distbench.report.tables import Table

_TITLES = {
    "throughput-memory": "Throughput against memory",
    "scaling": "Scaling",
    "time": "Where time goes",
    "memory": "Where memory goes",
    "communication": "Communication",
    "equivalence": "Same training?",
    "convergence": "Convergence",
    "loss": "Loss curves",
    "parity": "Fair fight?",
    "ranks": "Ranks",
    "trials": "Trials",
    "telemetry": "The machine meanwhile",
}
"""In the order of the page. What is not named here follows, under the title of its table."""

_READ_FIRST, _READ_LAST = ("convergence", "equivalence"), ("telemetry",)


@dataclass(frozen=True)
class Chapter:
    """One section of the page: charts, and a table of everything behind them."""

    id: str
    title: str
    charts: Sequence[Chart]
    table: Table | None

    folded: bool = False
    """Whether the table is opened by who wants it."""


def chapters(cases: Sequence[CaseSummary], records: Sequence[Record]) -> list[Chapter]:
    """Return the chapters that have something to show of *cases*, and of all *records* of their run."""
    charts = _charts(cases, of_kind(records, "measure"))
    tables = {table.name: table for table in views.tables(cases, records)}
    order = list(dict.fromkeys([*_TITLES, *tables]))
    return [
        _chapter(name, charts.get(name, []), tables.get(name))
        for name in order
        if charts.get(name) or name in tables
    ]


def _chapter(name: str, charts: Sequence[Chart], table: Table | None) -> Chapter:
    title = _TITLES.get(name) or (table.title if table else name)
    # charts say the same as their table, and some tables nobody reads first
    folded = (bool(charts) and name not in _READ_FIRST) or name in _READ_LAST
    return Chapter(name, title, charts, table, folded)


def _charts(cases: Sequence[CaseSummary], measured: Sequence[Record]) -> dict[str, list[Chart]]:
    style, series = Style.of(cases), scaling(cases)
    return {
        "throughput-memory": throughput_figures.charts(cases, series, style),
        "scaling": scaling_figures.charts(series, style),
        "time": time_figures.charts(cases),
        "memory": memory_figures.charts(cases),
        "communication": communication_figures.charts(cases, style),
        "equivalence": equivalence_figures.charts(cases),
        "convergence": convergence_figures.charts(cases, style),
        "loss": loss_figures.charts(cases, style),
        "ranks": rank_figures.charts(cases),
        "trials": trial_figures.charts(cases, measured, style),
    }
