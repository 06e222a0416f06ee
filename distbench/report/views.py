"""The views of a run: tables that say more than the one of all cases. One file a view."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from distbench.analysis.summary import CaseSummary
from distbench.record import Record
from distbench.report import (
    checkpoint_view,
    communication_view,
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
    "parity": parity_view.table,
    "telemetry": telemetry_view.table,
}
"""Word of ``distbench show --view`` -> what makes the table, in the order of the page."""
JOB_VIEWS: dict[str, Callable[[Sequence[Record]], Table]] = {"checkpoint": checkpoint_view.table}
"""The same of what was launched for something else than measuring: the kind of job is the view's name."""


def tables(cases: Sequence[CaseSummary], jobs: Mapping[str, Sequence[Record]]) -> list[Table]:
    """Return every view that has something to show of *cases*, and of the records of other *jobs*."""
    made = [view(cases) for view in VIEWS.values()]
    made += [view(jobs.get(kind, [])) for kind, view in JOB_VIEWS.items()]
    # a job of which nothing came has no rows, but says why
    return [table for table in made if table.rows or jobs.get(table.name)]
