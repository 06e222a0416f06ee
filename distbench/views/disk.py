"""The view ``disk``: what offload to a disk moves in a step, and how much of the step the disk needs."""

from __future__ import annotations

from distbench.analysis.case_summary import CaseSummary
from distbench.analysis.run import AnalysedRun
from distbench.core.grouping import gathered
from distbench.report.view import CASE, View, case_cells, measured_cell
from distbench.tables.table import PERCENT, Cell, Field, Row, Sheet

_MOSTLY = 0.5
"""Part of a step from which on the disk decides its length."""


def _rate(value: float) -> str:
    return f"{value / 1e9:.3g}"


_COLUMNS = (
    Field(
        "disk_read", "read/step", "Bytes that all ranks read in a step, by the kernel's count.", "B", "lower"
    ),
    Field("disk_read_theory", "theory", "Bytes to read in a step by theory, at most.", "B"),
    Field("disk_written", "written/step", "Bytes that all ranks write in a step, likewise.", "B", "lower"),
    Field("disk_written_theory", "theory", "Bytes to write in a step by theory, at most.", "B"),
    Field("disk_read_rate", "reads, GB/s", "What the disk gives by itself.", "B/s", "higher", format=_rate),
    Field(
        "disk_written_rate", "writes, GB/s", "What the disk takes by itself.", "B/s", "higher", format=_rate
    ),
    Field("disk_least_s", "disk at least", "Least time that a step takes for its disk.", "s", "lower"),
    Field("step_s", "step", "Length of a step, the slowest rank's.", "s", "lower"),
)


class DiskView(View):
    """A row for each measured case that offloads to a disk."""

    title = "Offload to a disk"
    place = 45
    caption = (
        "What all ranks read and write in a step, by the kernel's count of storage, beside theory (at most: "
        "what is smaller than 1 MiB stays in memory); and what the disk gives by itself, in blocks as "
        "DeepSpeed moves them. Disk at least: those bytes over that throughput, and its share of the step. "
        "Medians over trials."
    )
    fields = (
        *CASE,
        *_COLUMNS,
        Field("disk_share", "share", "Least time for the disk over the step.", "", "lower", format=PERCENT),
    )

    def sheet(self, run: AnalysedRun) -> Sheet:
        rows = [row for row in run.cases if row.measured and "disk_read" in row.values]
        notes = [*_deciding(run, rows), *_missing(run, rows)]
        if not rows:
            notes = ["No case was measured that offloads training state to a disk."]
        return self.made([_row(row) for row in rows], notes)


def _row(row: CaseSummary) -> Row:
    values = {field.name: measured_cell(row, field.name) for field in _COLUMNS}
    return Row({**case_cells(row.case), **values, "disk_share": Cell(_share(row))})


def _share(row: CaseSummary) -> float | None:
    least, step = row.values.get("disk_least_s"), row.values.get("step_s")
    return least.value / step.value if least and step else None


def _deciding(run: AnalysedRun, rows: list[CaseSummary]) -> list[str]:
    """Which cases are as fast as their disk, whatever computes beside it."""
    names = run.names(rows)
    shares = {row.case.id: share for row in rows if (share := _share(row)) is not None and share > _MOSTLY}
    return [
        f"{names[case_id]}: at least {share:.0%} of a step is its disk's. A faster disk, more nodes with "
        "disks of their own, or less on the disk make it faster; a faster device hardly."
        for case_id, share in shares.items()
    ]


def _missing(run: AnalysedRun, rows: list[CaseSummary]) -> list[str]:
    names = run.names(rows)
    reasons = gathered(
        (reason, names[row.case.id]) for row in rows if (reason := row.absent.get("disk_read_rate"))
    )
    return [
        f"Throughput of the disk by itself: {reason} ({', '.join(of)})." for reason, of in reasons.items()
    ]
