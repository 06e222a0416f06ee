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
        "Cost of 1e9 tokens, and duration and cost of the whole training, computed from tokens/s and "
        "the price of a device. Lower is better; the relative uncertainty is that of tokens/s. They "
        "apply to the measured model and number of devices."
    )
    fields = (
        *CASE_FIELDS,
        CaseColumn(THROUGHPUT, "tokens/s", "Mean over trials.", "tokens/s", "higher", read=_speed),
        rate_column(COST_PER_BILLION_TOKENS, "per 1e9 tokens", "Cost of 1e9 tokens.", better="lower"),
        rate_column(TRAINING_HOURS, "hours", "Duration of the whole training in hours.", "h", "lower"),
        rate_column(TRAINING_COST, "whole", "Cost of the whole training.", better="lower"),
    )

    def table(self, run: RunAnalysis) -> Table:
        cost = run.device_cost
        if cost is None:
            advice = "set cost: {per_device_hour: 2.5, currency: USD} in the suite, or use --price '2.5 USD'"
            return self.make_table([], [f"The price of a device is unknown; {advice}."])
        made = self.make_table(
            [self.case_row(row) for row in sorted_by_value(run.cases, COST_PER_BILLION_TOKENS)],
            [
                f"Price: {format_number(cost.per_device_hour)} {cost.currency} per device-hour. Whole "
                f"training: {format_number(cost.tokens)} tokens (cost.tokens)."
            ],
        )
        headings = {
            COST_PER_BILLION_TOKENS: f"{cost.currency} per 1e9 tokens",
            TRAINING_COST: f"{cost.currency} in all",
        }
        fields = (replace(f, heading=headings.get(f.name, f.heading)) for f in made.fields)
        return replace(made, fields=tuple(fields))
