"""The view ``diagnosis``: what limits the step of each case, and what to try next."""

from __future__ import annotations

from typing import Any

from distbench.analysis.gradient_range import gradient_range_sentences
from distbench.analysis.run import RunAnalysis
from distbench.analysis.step_limits import StepLimit
from distbench.core.text import one_line
from distbench.tables.table import Field, Table, TableCell, TableRow
from distbench.views.base import CASE_FIELDS, View, case_cells


class DiagnosisView(View):
    """A row for each measured case."""

    title = "What limits a step"
    order = 24
    caption = (
        "The largest loss of time that can be avoided, or the computation itself. share: of a profiled step, "
        "mean over ranks, but of idle time (host) that of a timed step, so shares are approximate. data: "
        "from 5% of a step on; optimizer, host: 15%; all others: 10%."
    )
    fields = (
        *CASE_FIELDS,
        Field("limit", "", "Kind of limit, for programs.", type="varchar"),
        Field("diagnosis", "diagnosis", "What limits the step.", type="varchar"),
        Field("share", "share", "Share of the step.", format="{:.0%}".format),
        Field("evidence", "evidence", "The numbers that it rests on.", type="varchar"),
        Field("advice", "", "What to try next.", type="varchar"),
    )

    def table(self, run: RunAnalysis) -> Table:
        found = run.step_limits
        names = run.short_names([row for row, _ in found])
        rows = [
            TableRow({**case_cells(row.case, names[row.case.id]), **_cells(limit)}) for row, limit in found
        ]
        known = [limit for _, limit in found if isinstance(limit, StepLimit)]
        advice = {limit.word: limit.advice for limit in known}
        notes = [f"{word.capitalize()}: try {text}." for word, text in advice.items()]
        measured = [row for row, _ in found]
        return self.make_table(rows, [*notes, *gradient_range_sentences(measured, names)])


def _cells(limit: StepLimit | str) -> dict[str, Any]:
    if isinstance(limit, str):
        names = ("limit", "diagnosis", "share", "evidence", "advice")
        return dict.fromkeys(names, TableCell(None, reason=one_line(limit)))
    return {
        "limit": limit.limit,
        "diagnosis": limit.word,
        "share": limit.share,
        "evidence": one_line(limit.sentence),
        "advice": limit.advice,
    }
