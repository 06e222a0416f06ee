"""The view ``disk``: what offload to a disk moves in a step, and how much of the step the disk needs."""

from __future__ import annotations

from distbench.analysis.case_summary import CaseSummary
from distbench.analysis.run import RunAnalysis
from distbench.core.units import format_gb_per_s
from distbench.tables.table import PERCENT, Table, TableCell
from distbench.views.base import CASE_FIELDS, CaseColumn, View, absence_reasons

_DOMINANT_SHARE = 0.5
"""Share of a step from which on the disk decides its length."""


_COLUMNS = (
    CaseColumn(
        "disk_read", "read/step", "Bytes that all ranks read in a step, by the kernel's count.", "B", "lower"
    ),
    CaseColumn("disk_read_theory", "theory", "Upper bound on the bytes read in a step, by theory.", "B"),
    CaseColumn(
        "disk_written", "written/step", "Bytes that all ranks write in a step, likewise.", "B", "lower"
    ),
    CaseColumn(
        "disk_written_theory", "theory", "Upper bound on the bytes written in a step, by theory.", "B"
    ),
    CaseColumn(
        "disk_read_rate",
        "reads, GB/s",
        "Read throughput of the disk alone.",
        "B/s",
        "higher",
        format=format_gb_per_s,
    ),
    CaseColumn(
        "disk_written_rate",
        "writes, GB/s",
        "Write throughput of the disk alone.",
        "B/s",
        "higher",
        format=format_gb_per_s,
    ),
    CaseColumn("disk_least_s", "disk at least", "Minimum time of a step for its disk traffic.", "s", "lower"),
    CaseColumn("step_s", "step", "Length of a step, the slowest rank's.", "s", "lower"),
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
        CaseColumn(
            "disk_share",
            "share",
            "Least time for the disk over the step.",
            better="lower",
            format=PERCENT,
            read=lambda row: TableCell(_share(row)),
        ),
    )

    def table(self, run: RunAnalysis) -> Table:
        rows = [row for row in run.cases if row.measured and "disk_read" in row.values]
        notes = [*_disk_bound_notes(run, rows), *_absence_notes(run, rows)]
        if not rows:
            notes = ["No measured case offloads training state to a disk."]
        return self.make_table([self.case_row(row) for row in rows], notes)


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
    reasons = absence_reasons(rows, ("disk_read_rate",), run.short_names(rows))
    return [
        f"Throughput of the disk alone: {reason} ({', '.join(of)})." for (_, reason), of in reasons.items()
    ]
