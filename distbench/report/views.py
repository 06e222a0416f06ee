"""The views of a run: tables that say more than the one of all cases. One file a view."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from distbench.analysis.summary import CaseSummary
from distbench.record import Record, of_kind
from distbench.report import (
    checkpoint_view,
    communication_view,
    convergence_view,
    equivalence_view,
    memory_view,
    parity_view,
    telemetry_view,
    time_view,
)
from distbench.report.tables import Table

VIEWS: dict[str, Callable[[Sequence[CaseSummary]], Table]] = {
    "time": time_view.table,
    "memory": memory_view.table,
    "communication": communication_view.table,
    "convergence": convergence_view.table,
    "equivalence": equivalence_view.table,
    "parity": parity_view.table,
    "telemetry": telemetry_view.table,
}
"""Word of ``distbench show --view`` -> what makes the table, in the order of the page."""
JOB_VIEWS: dict[str, Callable[[Sequence[Record]], Table]] = {"checkpoint": checkpoint_view.table}
"""The same of what was launched for something else than measuring: the kind of job is the view's name."""


def tables(cases: Sequence[CaseSummary], records: Sequence[Record]) -> list[Table]:
    """Return every view that has something to show of *cases*, and of all *records* of their run."""
    made = [view(cases) for view in VIEWS.values()]
    asked = {record.job.kind for record in records}
    made += [view(of_kind(records, kind)) for kind, view in JOB_VIEWS.items() if kind in asked]
    # a job of which nothing came has no rows, but says why
    return [table for table in made if table.rows or table.name in asked]
