"""The view ``time``: where a step goes, and what came before the first one."""

from __future__ import annotations

from collections.abc import Sequence

from distbench.analysis.parity import marked_names
from distbench.analysis.summary import CaseSummary
from distbench.report.tables import Table
from distbench.report.time_figures import PARTS
from distbench.units import duration_text

_CAPTION = (
    "step: as timed with nothing else switched on, median over trials. The shares are of a step under "
    "the profiler (mean over ranks; they add up to 100 %), which takes slow times as long: shares, "
    "not times. comm: communication that no computation hides. imbal.: imbalance, work of the slowest "
    "rank over that of the median rank, 1 is best. first: the very first step; build: model, engine and "
    "optimizer."
)
_HEADINGS = (
    "case",
    "step",
    "data",
    "forw.",
    "backw.",
    "optim.",
    "comm",
    "other",
    "slow",
    "imbal.",
    "first",
    "build",
)


def table(cases: Sequence[CaseSummary]) -> Table:
    """Return the view of *cases*."""
    measured = [row for row in cases if "step_s" in row.values]
    names = marked_names(measured, cases)
    rows = tuple(_row(names[row.case.id], row) for row in measured)
    notes = tuple(_missing(names, measured))
    return Table("time", "Where time goes", _CAPTION, _HEADINGS, rows, notes)


def _row(name: str, row: CaseSummary) -> tuple[str, ...]:
    return (
        name,
        _seconds(row, "step_s"),
        *(_share(row, part) for part in PARTS),
        _ratio(row, "profile_slowdown"),
        _ratio(row, "imbalance"),
        _seconds(row, "first_step_s"),
        _seconds(row, "build_s"),
    )


def _share(row: CaseSummary, part: str) -> str:
    step, found = row.values.get("profile_step_s"), row.values.get(f"profile_{part}_s")
    if step is None or found is None or not step.value:
        return "–"
    return f"{found.value / step.value:.0%}"


def _seconds(row: CaseSummary, column: str) -> str:
    return duration_text(row.values[column].value) if column in row.values else "–"


def _ratio(row: CaseSummary, column: str) -> str:
    return f"{row.values[column].value:.2f}" if column in row.values else "–"


def _missing(names: dict[str, str], rows: Sequence[CaseSummary]) -> list[str]:
    found: dict[str, list[str]] = {}
    for row in rows:
        if reason := row.absent.get("profile_step_s"):
            found.setdefault(reason, []).append(names[row.case.id])
    return [f"No breakdown of {', '.join(names)}: {reason}." for reason, names in found.items()]
