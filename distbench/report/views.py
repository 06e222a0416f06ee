"""The views of a run: tables that say more than the one of all cases. One file a view."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from distbench.analysis.summary import CaseSummary
from distbench.report import (
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


def tables(cases: Sequence[CaseSummary]) -> list[Table]:
    """Return every view that has something to show of *cases*."""
    made = [view(cases) for view in VIEWS.values()]
    return [table for table in made if table.rows]
