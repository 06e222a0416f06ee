"""The view ``tally``: the steps that the tallies took."""

from __future__ import annotations

from typing import ClassVar

from distbench.analysis.case_names import short_names
from distbench.analysis.run import RunAnalysis
from distbench.record import records_of_kind
from distbench.tables.table import Field, Table, TableCell, TableRow
from distbench.views.base import CASE_FIELDS, View, case_cells


class TallyView(View):
    """The steps that the tallies took."""

    title: ClassVar[str] = "Tallies"
    order: ClassVar[int] = 200
    caption: ClassVar[str] = "Steps of all ranks together, higher is better."
    fields: ClassVar[tuple[Field, ...]] = (
        *CASE_FIELDS,
        Field("tallied_steps", "steps", "Steps taken.", "", "higher"),
    )

    def table(self, run: RunAnalysis) -> Table:
        records = records_of_kind(run.records, "tally")
        names = short_names([record.case for record in records])
        rows = [
            TableRow(
                {
                    **case_cells(record.case, names[record.case_id]),
                    "tallied_steps": TableCell(record.values.get("tallied_steps")),
                }
            )
            for record in records
        ]
        return self.make_table(rows, [])
