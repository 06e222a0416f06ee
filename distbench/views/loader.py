"""The view ``loader``: what a step waits for data, and how fast it would be without."""

from __future__ import annotations

from distbench.analysis.case_summary import CaseSummary
from distbench.analysis.loader import lost_share, ready_tokens_per_s, wait_range
from distbench.analysis.run import RunAnalysis
from distbench.core.units import format_duration
from distbench.tables.table import PERCENT, Table, TableCell
from distbench.views.base import CASE_FIELDS, CaseColumn, View, absence_reasons

_LEAST = 0.05
"""Share of a step from which on the data limits it, as in the diagnosis."""


def _wait_cell(row: CaseSummary) -> TableCell:
    found = wait_range(row)
    if found is None:
        return TableCell(None)
    return TableCell(found[1], " to ".join(dict.fromkeys(map(format_duration, found))))


class LoaderView(View):
    """A row for each measured case with a loader."""

    title = "Waiting for data"
    order = 47
    caption = (
        "wait: time of a timed step until a rank has its micro-batches, mean over steps, from the rank that "
        "waits least to the one that waits most. ready step: a step whose micro-batches are in memory before "
        "it begins, as an infinitely fast loader would have them. lost: share of the throughput with ready "
        "data that the loader costs."
    )
    fields = (
        *CASE_FIELDS,
        CaseColumn(
            "workers",
            "workers",
            "Worker processes of each rank's loader.",
            read=lambda row: TableCell(row.case.loader.workers),
        ),
        CaseColumn(
            "wait_s",
            "wait",
            "Time of a step until the micro-batches are there, on the rank that waits most.",
            "s",
            "lower",
            read=_wait_cell,
        ),
        CaseColumn("step_s", "step", "Length of a step, the slowest rank's.", "s", "lower"),
        CaseColumn("ready_step_s", "ready step", "Length of a step that never waits for data.", "s", "lower"),
        CaseColumn("tokens_per_s", "tokens/s", "Tokens per second.", "tokens/s", "higher"),
        CaseColumn(
            "ready_tokens_per_s",
            "ready tokens/s",
            "Tokens per second of steps that never wait for data.",
            "tokens/s",
            "higher",
            read=lambda row: TableCell(ready_tokens_per_s(row)),
        ),
        CaseColumn(
            "lost",
            "lost",
            "Share of the throughput with ready data that the loader costs.",
            better="lower",
            format=PERCENT,
            read=lambda row: TableCell(lost_share(row)),
        ),
    )

    def table(self, run: RunAnalysis) -> Table:
        rows = [row for row in run.cases if row.measured and row.case.loader.workers is not None]
        if not rows:
            return self.make_table([], ["No measured case has a loader; set loader.workers to 0 or more."])
        reasons = absence_reasons(rows, ("ready_step_s",), run.short_names(rows))
        missing = [f"Ready step: {reason} ({', '.join(of)})." for (_, reason), of in reasons.items()]
        return self.make_table([self.case_row(row) for row in rows], [*_lost_notes(run, rows), *missing])


def _lost_notes(run: RunAnalysis, rows: list[CaseSummary]) -> list[str]:
    """Cases that lose throughput to their loader."""
    names = run.short_names(rows)
    return [
        f"{names[row.case.id]}: you lose {lost:.0%} of the throughput to data."
        for row in rows
        if (lost := lost_share(row)) is not None and lost >= _LEAST
    ]
