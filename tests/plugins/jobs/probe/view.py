"""The view ``probe``: the steps that the probes took."""

from __future__ import annotations

from typing import ClassVar

from distbench.analysis.case_names import short_names
from distbench.analysis.run import AnalysedRun
from distbench.record import of_kind
from distbench.report.view import CASE, View, case_cells
from distbench.tables.table import Cell, Field, Row, Sheet


class ProbeView(View):
    """The steps that the probes took."""

    title: ClassVar[str] = "Probes"
    place: ClassVar[int] = 200
    caption: ClassVar[str] = "Steps of all ranks together, higher is better."
    fields: ClassVar[tuple[Field, ...]] = (
        *CASE,
        Field("probed_steps", "steps", "Steps taken.", "", "higher"),
    )

    def sheet(self, run: AnalysedRun) -> Sheet:
        records = of_kind(run.records, "probe")
        names = short_names([record.case for record in records])
        rows = [
            Row(
                {
                    **case_cells(record.case, names[record.case_id]),
                    "probed_steps": Cell(record.values.get("probed_steps")),
                }
            )
            for record in records
        ]
        return self.made(rows, [])
