"""The view ``cost``: what training costs in money and hours, if it is said what a device costs."""

from __future__ import annotations

from dataclasses import replace

from distbench.analysis.case_summary import THROUGHPUT, CaseSummary, sorted_by_value
from distbench.analysis.price import COST_PER_BILLION_TOKENS, TRAINING_COST, TRAINING_HOURS, device_cost
from distbench.analysis.run import RunAnalysis
from distbench.core.units import format_number
from distbench.report.overview import estimate_text
from distbench.report.view import CASE_FIELDS, View, case_cells, rate_cell
from distbench.tables.table import Field, Table, TableCell, TableRow


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
        Field(THROUGHPUT, "tokens/s", "Mean over trials.", "tokens/s", "higher"),
        Field(
            COST_PER_BILLION_TOKENS,
            "per 1e9 tokens",
            "Cost of 1e9 tokens.",
            "",
            "lower",
            format=format_number,
        ),
        Field(
            TRAINING_HOURS,
            "hours",
            "Duration of the whole training in hours.",
            "h",
            "lower",
            format=format_number,
        ),
        Field(TRAINING_COST, "whole", "Cost of the whole training.", "", "lower", format=format_number),
    )

    def table(self, run: RunAnalysis) -> Table:
        cost = device_cost(run.info.suite)
        if cost is None:
            said = "set cost: {per_device_hour: 2.5, currency: USD} in the suite, or use --price '2.5 USD'"
            return self.make_table([], [f"The price of a device is unknown; {said}."])
        made = self.make_table(
            [_row(row) for row in sorted_by_value(run.cases, COST_PER_BILLION_TOKENS)],
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


def _row(row: CaseSummary) -> TableRow:
    speed = TableCell(row.values[THROUGHPUT].value, estimate_text(row, THROUGHPUT, format_number))
    amounts = {
        name: rate_cell(row, name) for name in (COST_PER_BILLION_TOKENS, TRAINING_HOURS, TRAINING_COST)
    }
    return TableRow({**case_cells(row.case), THROUGHPUT: speed, **amounts})
