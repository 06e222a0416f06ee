"""The view ``cost``: what training costs in money and hours, if it is said what a device costs."""

from __future__ import annotations

from dataclasses import replace

from distbench.analysis.case_summary import THROUGHPUT, CaseSummary, ranked
from distbench.analysis.price import HOURS, PER_BILLION, WHOLE, cost_of
from distbench.analysis.run import AnalysedRun
from distbench.core.units import number_text
from distbench.report.overview import spread_text
from distbench.report.view import CASE, View, case_cells, rate_cell
from distbench.tables.table import Cell, Field, Row, Sheet


class CostView(View):
    """A row for each measured case, the cheapest first."""

    title = "Cost"
    place = 65
    caption = (
        "Money for 1e9 tokens, and hours and money for the whole training, from tokens/s and the price of a "
        "device; each is as uncertain, relatively, as tokens/s, and lower is better. They hold for the model "
        "and the number of devices that were measured."
    )
    fields = (
        *CASE,
        Field(THROUGHPUT, "tokens/s", "Mean over trials.", "tokens/s", "higher"),
        Field(PER_BILLION, "per 1e9 tokens", "Money for 1e9 tokens.", "", "lower", format=number_text),
        Field(HOURS, "hours", "Hours of the whole training.", "h", "lower", format=number_text),
        Field(WHOLE, "whole", "Money for the whole training.", "", "lower", format=number_text),
    )

    def sheet(self, run: AnalysedRun) -> Sheet:
        cost = cost_of(run.info.suite)
        if cost is None:
            said = "set cost: {per_device_hour: 2.5, currency: USD} in the suite, or use --price '2.5 USD'"
            return self.made([], [f"It is not known what a device costs; {said}."])
        made = self.made(
            [_row(row) for row in ranked(run.cases, PER_BILLION)],
            [
                f"Price: {number_text(cost.per_device_hour)} {cost.currency} for a device and hour. Whole "
                f"training: {number_text(cost.tokens)} tokens (cost.tokens)."
            ],
        )
        headings = {PER_BILLION: f"{cost.currency} per 1e9 tokens", WHOLE: f"{cost.currency} in all"}
        fields = (replace(f, heading=headings.get(f.name, f.heading)) for f in made.fields)
        return replace(made, fields=tuple(fields))


def _row(row: CaseSummary) -> Row:
    speed = Cell(row.values[THROUGHPUT].value, spread_text(row, THROUGHPUT, number_text))
    amounts = {name: rate_cell(row, name) for name in (PER_BILLION, HOURS, WHOLE)}
    return Row({**case_cells(row.case), THROUGHPUT: speed, **amounts})
