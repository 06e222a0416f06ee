"""The view ``telemetry``: how the machine fared while each case was measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from distbench.analysis.case_summary import CaseSummary
from distbench.analysis.run import RunAnalysis
from distbench.core.grouping import group_pairs
from distbench.core.text import one_line
from distbench.core.units import format_count, format_number
from distbench.tables.table import PERCENT, Table, TableCell
from distbench.views.base import CASE_FIELDS, CaseColumn, View, rate_column

_MAX_REASONS = 3


def _gigabytes(value: float) -> str:
    return f"{value / 1e9:.2f} GHz"


def _disturbance(name: str, heading: str, doc: str, text: Callable[[float], str] = PERCENT) -> CaseColumn:
    return CaseColumn(name, heading, doc, "", "lower", format=text)


_COLUMNS = (
    _disturbance("host_foreign_cpu", "others' CPU", "Usable CPU time that other processes took."),
    _disturbance("host_busy_processes", "busy others", "Other busy processes.", format_number),
    _disturbance("host_steal", "steal", "CPU time that a hypervisor took."),
    CaseColumn("host_load", "load", "Load average.", format="{:.1f}".format),
    CaseColumn("host_frequency", "clock", "Clock of the CPU.", "Hz", format=_gigabytes),
    CaseColumn("gpu_utilisation", "GPU util", "Share of time in which kernels ran.", format=PERCENT),
    CaseColumn("gpu_power", "GPU W", "Power of a GPU.", "W", format=format_number),
    rate_column("energy_per_token", "J/token", "Energy of all GPUs.", "J/token", "lower"),
    CaseColumn("gpu_sm_clock", "SM clock", "Clock of the GPU's multiprocessors.", "Hz", format=_gigabytes),
    CaseColumn("gpu_temperature", "GPU °C", "Temperature of a GPU.", "°C", format=format_number),
    CaseColumn("gpu_memory_used", "GPU mem", "Memory of the GPU in use.", "B"),
    CaseColumn("gpu_memory_own", "own mem", "Memory of the GPU in use by the ranks.", "B"),
    _disturbance("gpu_throttle", "throttled", "Share of time throttled by heat or power."),
    CaseColumn("gpu_power_cap", "power cap", "Share of time at the power limit.", format=PERCENT),
    _disturbance("gpu_other_processes", "GPU others", "Other processes on the GPU.", format_number),
)
_NAMES = tuple(each.name for each in _COLUMNS)
_LARGEST = {"host_foreign_cpu": "others' CPU", "host_steal": "steal", "gpu_throttle": "throttled"}
"""Columns of shares that the summary names."""


def _disturbed(row: CaseSummary) -> TableCell:
    return TableCell(row.degraded_trials, f"{row.degraded_trials} of {row.trials}")


def _trials(row: CaseSummary) -> TableCell:
    return TableCell(row.trials)


class TelemetryView(View):
    """A row for each case with a column of telemetry."""

    title = "Machine conditions"
    order = 120
    collapsed = True
    caption = (
        "Machine load during and around the timed window, sampled outside of the ranks; medians over "
        "the trials that count. On several nodes the worst node is shown (for power and energy, the "
        "sum). Others' CPU (share of the usable CPU time that other processes took) and steal (share "
        "that the hypervisor took) disturb a measurement: near 0 is good. A disturbed trial is used "
        "only if its case has no undisturbed one; then the case is not compared."
    )
    fields = (
        *CASE_FIELDS,
        CaseColumn(
            "disturbed", "disturbed", "Trials on a noisy machine.", "", "lower", "bigint", read=_disturbed
        ),
        CaseColumn("trials", "", "Trials that were measured.", type="bigint", read=_trials),
        *_COLUMNS,
    )

    def table(self, run: RunAnalysis) -> Table:
        rows = [row for row in run.cases if row.measured and any(name in row.columns for name in _NAMES)]
        made = self.make_table(
            [self.case_row(row) for row in rows], (*_disturbance_notes(rows), *_absence_notes(rows))
        )
        # most machines have no GPU; empty columns are hidden
        empty = [name for name in _NAMES if not any(name in row.values for row in rows)]
        fields = tuple(replace(f, heading="") if f.name in empty else f for f in self.fields)
        return replace(made, fields=fields)

    def summary(self, run: RunAnalysis, table: Table) -> str:
        """Disturbed trials, and the largest disturbances."""
        disturbed, trials = (
            sum(int(row.value(name) or 0) for row in table.rows) for name in ("disturbed", "trials")
        )
        largest = {
            text: max(known)
            for name, text in _LARGEST.items()
            if (known := [float(each) for row in table.rows if (each := row.value(name)) is not None])
        }
        parts = [f"{disturbed:,} of {format_count(trials, 'trial')} disturbed"]
        parts += [f"{text} at most {share:.0%}" for text, share in largest.items()]
        return f"{', '.join(parts)}."

    def has_warning(self, run: RunAnalysis) -> bool:
        """True if any case was measured on a noisy machine."""
        return any(row.degraded for row in run.cases)


def _disturbance_notes(rows: Sequence[CaseSummary]) -> list[str]:
    reasons = [f"{one_line(row.case.name)}: {one_line(row.degraded)}." for row in rows if row.degraded]
    # the numbers are in the table: a few show which limits were exceeded
    left = len(reasons) - _MAX_REASONS
    return [*reasons[:_MAX_REASONS], *([f"{left} more cases are similar."] if left > 0 else [])]


def _absence_notes(rows: Sequence[CaseSummary]) -> list[str]:
    """Reasons why columns have no number; columns with the same reason share a note."""
    found = ((row.absence_reasons.get(name), name) for name in _NAMES for row in rows)
    reasons = group_pairs(dict.fromkeys((reason, name) for reason, name in found if reason))
    return [f"No {_names_text(names)}: {one_line(reason)}." for reason, names in reasons.items()]


def _names_text(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
