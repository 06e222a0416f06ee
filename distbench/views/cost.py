"""The view ``cost``: what training costs in money and hours, if it is said what a device costs."""

from __future__ import annotations

from dataclasses import replace

from distbench.analysis.case_summary import THROUGHPUT, CaseSummary, sorted_by_value
from distbench.analysis.cost import (
    COST_PER_BILLION_TOKENS,
    TRAINING_COST,
    TRAINING_HOURS,
)
from distbench.analysis.run import RunAnalysis
from distbench.core.units import format_number
from distbench.tables.table import Table, TableCell
from distbench.views.base import CASE_FIELDS, CaseColumn, View, rate_column, spread_cell


def _speed(row: CaseSummary) -> TableCell:
    return spread_cell(row, THROUGHPUT)


class CostView(View):
    """A row for each measured case, the cheapest first."""

    title = "Cost"
    order = 65
    caption = (
        "Money for 1e9 tokens, and hours and money for the whole training, from tokens/s and the price of a "
        "device; each is as uncertain, relatively, as tokens/s, and lower is better. They hold for the model "
        "and the number of devices that were measured."
    )
    fields = (
        *CASE_FIELDS,
        CaseColumn(THROUGHPUT, "tokens/s", "Mean over trials.", "tokens/s", "higher", read=_speed),
        rate_column(COST_PER_BILLION_TOKENS, "per 1e9 tokens", "Money for 1e9 tokens.", better="lower"),
        rate_column(TRAINING_HOURS, "hours", "Hours of the whole training.", "h", "lower"),
        rate_column(TRAINING_COST, "whole", "Money for the whole training.", better="lower"),
    )

    def table(self, run: RunAnalysis) -> Table:
        cost = run.device_cost
        if cost is None:
            said = "set cost: {per_device_hour: 2.5, currency: USD} in the suite, or use --price '2.5 USD'"
            return self.make_table([], [f"It is not known what a device costs; {said}."])
        made = self.make_table(
            [self.case_row(row) for row in sorted_by_value(run.cases, COST_PER_BILLION_TOKENS)],
            [
                f"Price: {format_number(cost.per_device_hour)} {cost.currency} for a device and hour. Whole "
                f"training: {format_number(cost.tokens)} tokens (cost.tokens)."
            ],
        )
        headings = {
            COST_PER_BILLION_TOKENS: f"{cost.currency} per 1e9 tokens",
            TRAINING_COST: f"{cost.currency} in all",
        }
        fields = (replace(f, heading=headings.get(f.name, f.heading)) for f in made.fields)
        return replace(made, fields=tuple(fields))
