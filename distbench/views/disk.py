"""The view ``disk``: what offload to a disk moves in a step, and how much of the step the disk needs."""

from __future__ import annotations

from distbench.analysis.case_summary import CaseSummary
from distbench.analysis.run import RunAnalysis
from distbench.core.grouping import group_pairs
from distbench.report.view import CASE_FIELDS, View, case_cells, value_cell
from distbench.tables.table import PERCENT, Field, Table, TableCell, TableRow

_DOMINANT_SHARE = 0.5
"""Share of a step from which on the disk decides its length."""


def _gb_per_s(value: float) -> str:
    return f"{value / 1e9:.3g}"


_COLUMNS = (
    Field(
        "disk_read", "read/step", "Bytes that all ranks read in a step, by the kernel's count.", "B", "lower"
    ),
    Field("disk_read_theory", "theory", "Upper bound on the bytes read in a step, by theory.", "B"),
    Field("disk_written", "written/step", "Bytes that all ranks write in a step, likewise.", "B", "lower"),
    Field("disk_written_theory", "theory", "Upper bound on the bytes written in a step, by theory.", "B"),
    Field(
        "disk_read_rate",
        "reads, GB/s",
        "Read throughput of the disk alone.",
        "B/s",
        "higher",
        format=_gb_per_s,
    ),
    Field(
        "disk_written_rate",
        "writes, GB/s",
        "Write throughput of the disk alone.",
        "B/s",
        "higher",
        format=_gb_per_s,
    ),
    Field("disk_least_s", "disk at least", "Minimum time of a step for its disk traffic.", "s", "lower"),
    Field("step_s", "step", "Length of a step, the slowest rank's.", "s", "lower"),
)


class DiskView(View):
    """A row for each measured case that offloads to a disk."""

    title = "Offload to a disk"
    order = 45
    caption = (
        "Bytes that all ranks read and write in a step, as counted by the kernel for storage, next to "
        "theory (an upper bound: tensors smaller than 1 MiB stay in memory); and the throughput of the "
        "disk alone, in blocks of the size that DeepSpeed uses. Disk at least: those bytes over that "
        "throughput, and its share of the step. Medians over trials."
    )
    fields = (
        *CASE_FIELDS,
        *_COLUMNS,
        Field("disk_share", "share", "Least time for the disk over the step.", "", "lower", format=PERCENT),
    )

    def table(self, run: RunAnalysis) -> Table:
        rows = [row for row in run.cases if row.measured and "disk_read" in row.values]
        notes = [*_disk_bound_notes(run, rows), *_absence_notes(run, rows)]
        if not rows:
            notes = ["No measured case offloads training state to a disk."]
        return self.make_table([_row(row) for row in rows], notes)


def _row(row: CaseSummary) -> TableRow:
    values = {field.name: value_cell(row, field.name) for field in _COLUMNS}
    return TableRow({**case_cells(row.case), **values, "disk_share": TableCell(_share(row))})


def _share(row: CaseSummary) -> float | None:
    least, step = row.values.get("disk_least_s"), row.values.get("step_s")
    return least.value / step.value if least and step else None


def _disk_bound_notes(run: RunAnalysis, rows: list[CaseSummary]) -> list[str]:
    """Cases that are as fast as their disk, regardless of computation."""
    names = run.short_names(rows)
    shares = {
        row.case.id: share for row in rows if (share := _share(row)) is not None and share > _DOMINANT_SHARE
    }
    return [
        f"{names[case_id]}: at least {share:.0%} of a step is disk traffic. A faster disk, more nodes "
        "with separate disks, or less data on the disk would make it faster; a faster device hardly "
        "would."
        for case_id, share in shares.items()
    ]


def _absence_notes(run: RunAnalysis, rows: list[CaseSummary]) -> list[str]:
    names = run.short_names(rows)
    reasons = group_pairs(
        (reason, names[row.case.id]) for row in rows if (reason := row.absence_reasons.get("disk_read_rate"))
    )
    return [f"Throughput of the disk alone: {reason} ({', '.join(of)})." for reason, of in reasons.items()]
