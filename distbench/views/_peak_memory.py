"""Chart and sentences of the view ``memory`` on the holders of memory at a peak."""

from __future__ import annotations

from collections.abc import Iterator

from distbench.analysis.case_summary import CaseSummary
from distbench.analysis.memory import PEAK_HOLDERS, PeakMemory, peak_memory
from distbench.analysis.run import RunAnalysis
from distbench.core.units import format_bytes, format_value
from distbench.tables.table import Field, Table, TableRow
from distbench.views.base import CASE_FIELDS, case_cells
from distbench.views.charts import palette
from distbench.views.charts.figures import Bar, CaseAxis, Chart, ChartSelection, make_figure, stacked_bars

_MIB = 2**20
_MAX_CASES_IN_NOTES = 6
_MIN_TOLD_SHARE = 0.005
"""Smallest share of a peak that a sentence names."""
_PHASES = {"forward": "forward pass", "backward": "backward pass", "step": "optimizer step"}
_FIELDS = (
    *CASE_FIELDS,
    *(Field(holder, holder, f"Memory {text}.", "B", "lower") for holder, text in PEAK_HOLDERS.items()),
)


def peak_notes(run: RunAnalysis, unit: str, size: float) -> Iterator[str]:
    """Sentence on the peak of each of the fastest cases, in *unit* of *size* bytes."""
    shown = ChartSelection.fastest(run, _peak_of, _MAX_CASES_IN_NOTES)
    for _, name, peak in shown.items:
        parts = [
            f"{held / size:.2f} {PEAK_HOLDERS[holder]}"
            for holder, held in peak.by_holder.items()
            if held >= _MIN_TOLD_SHARE * peak.bytes
        ]
        phase = _PHASES.get(peak.phase, peak.phase)
        yield (
            f"{name}: peak of {peak.bytes / size:.2f} {unit}, in the {phase} of rank {peak.rank}: "
            f"{', '.join(parts)}.{_largest(peak, size)}"
        )
    if shown.truncation_note:
        yield f"Peaks: {shown.truncation_note}"


def _largest(peak: PeakMemory, size: float) -> str:
    texts = [
        f"{row['bytes'] / size:.2f} {row['op']} in {row['place'] or 'an unknown place'}"
        for row in peak.largest_operations
    ]
    return f" Largest operations: {'; '.join(texts)}." if texts else ""


def peak_chart(run: RunAnalysis) -> Iterator[Chart]:
    """Chart of what holds the peak of each case."""
    shown = ChartSelection.fastest(run, _peak_of)
    if not shown.items:
        return
    axis = CaseAxis.of((row, name) for row, name, _ in shown.items)
    bars = [Bar(row.case.name, row.case.id, dict(peak.by_holder)) for row, _, peak in shown.items]
    rows = [TableRow({**case_cells(row.case, name), **peak.by_holder}) for row, name, peak in shown.items]
    largest = max((peak for *_, peak in shown.items), key=lambda peak: peak.bytes)
    yield Chart(
        "memory-peak",
        "What holds the peak",
        "Memory of the rank with the highest peak, at that moment of the counted step, by when it was "
        "allocated; lower is better. internal: inside collectives or compiled code; transient: allocated and "
        "freed within one operation. The notes name the largest operations.",
        make_figure(
            stacked_bars(
                bars,
                {name: name for name in PEAK_HOLDERS},
                palette.PEAK_HOLDERS,
                lambda _, held: format_value(held, "B"),
                _MIB,
                axis.positions,
            ),
            "MiB (lower is better)",
            rows=axis.labels,
            barmode="stack",
        ),
        Table("", "", _FIELDS, tuple(rows)),
        finding=f"Highest peak: {format_bytes(largest.bytes)}.",
        left_out=shown.truncation_note,
    )


def _peak_of(row: CaseSummary) -> PeakMemory | None:
    return peak_memory(row.representative_trial)
