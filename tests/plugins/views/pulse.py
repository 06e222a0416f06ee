"""The view ``pulse``: the strongest beat of each case."""

from __future__ import annotations

from typing import ClassVar

from distbench.analysis.run import AnalysedRun
from distbench.report.view import CASE, View, case_cells, measured_cell
from distbench.tables.table import Field, Row, Sheet


class PulseView(View):
    """The strongest beat of each case."""

    title: ClassVar[str] = "Does it beat?"
    caption: ClassVar[str] = "The strongest beat of each case, and how many there were; higher is better."
    fields: ClassVar[tuple[Field, ...]] = (
        *CASE,
        Field("strongest", "strongest", "The strongest beat of any rank.", "V", "higher"),
        Field("pulse_beats", "beats", "Steps that all ranks saw together.", "beats", "higher"),
    )

    def sheet(self, run: AnalysedRun) -> Sheet:
        rows = [(row, row.detail.tables.get("beats", [])) for row in run.cases if row.detail]
        return self.made(
            [
                Row(
                    {
                        **case_cells(row.case),
                        "strongest": max(beat["volts"] for beat in beats),
                        "pulse_beats": measured_cell(row, "pulse_beats"),
                    }
                )
                for row, beats in rows
                if beats
            ]
        )
