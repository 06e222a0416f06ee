"""The view ``pulse``: the strongest beat of each case."""

from __future__ import annotations

from typing import ClassVar

from distbench.analysis.run import RunAnalysis
from distbench.tables.table import Field, Table, TableRow
from distbench.views.base import CASE_FIELDS, View, case_cells, value_cell


class PulseView(View):
    """The strongest beat of each case."""

    title: ClassVar[str] = "Does it beat?"
    caption: ClassVar[str] = "The strongest beat of each case, and how many there were; higher is better."
    fields: ClassVar[tuple[Field, ...]] = (
        *CASE_FIELDS,
        Field("strongest", "strongest", "The strongest beat of any rank.", "V", "higher"),
        Field("pulse_beats", "beats", "Steps that all ranks saw together.", "beats", "higher"),
    )

    def table(self, run: RunAnalysis) -> Table:
        rows = [
            (row, row.representative_trial.tables.get("beats", []))
            for row in run.cases
            if row.representative_trial
        ]
        return self.make_table(
            [
                TableRow(
                    {
                        **case_cells(row.case),
                        "strongest": max(beat["volts"] for beat in beats),
                        "pulse_beats": value_cell(row, "pulse_beats"),
                    }
                )
                for row, beats in rows
                if beats
            ]
        )
