"""The view ``telemetry``: how the machine fared while each case was measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from distbench.analysis.summary import CaseSummary
from distbench.analysis.text import one_line
from distbench.report.tables import Table
from distbench.units import bytes_text, number_text

_MOST_REASONS = 3


def _percent(value: float) -> str:
    return f"{value:.1%}"


def _giga(value: float) -> str:
    return f"{value / 1e9:.2f} GHz"


# column -> heading, and how its numbers are told
_COLUMNS: dict[str, tuple[str, Callable[[float], str]]] = {
    "host_foreign_cpu": ("others' CPU", _percent),
    "host_busy_processes": ("busy others", number_text),
    "host_steal": ("steal", _percent),
    "host_load": ("load", "{:.1f}".format),
    "host_frequency": ("clock", _giga),
    "gpu_utilisation": ("GPU util", _percent),
    "gpu_power": ("GPU W", number_text),
    "energy_per_token": ("J/token", number_text),
    "gpu_sm_clock": ("SM clock", _giga),
    "gpu_temperature": ("GPU °C", number_text),
    "gpu_memory_used": ("GPU mem", bytes_text),
    "gpu_memory_own": ("own mem", bytes_text),
    "gpu_throttle": ("throttled", _percent),
    "gpu_power_cap": ("power cap", _percent),
    "gpu_other_processes": ("GPU others", number_text),
}


def table(cases: Sequence[CaseSummary]) -> Table:
    """Return how the machine fared, a row a case."""
    rows = [row for row in cases if row.measured and any(name in row.columns for name in _COLUMNS)]
    shown = [name for name in _COLUMNS if any(name in row.values for row in rows)]
    return Table(
        name="telemetry",
        title="The machine meanwhile",
        caption="What a thread beside the ranks saw in and around the timed window, medians over the trials "
        "that count. Others' CPU (part of the usable CPUs' time that other processes took) and steal (that a "
        "hypervisor took) disturb a measurement: near 0 is good. A disturbed trial is kept, but counts only "
        "where its case has no sound one; then the case is not compared.",
        headings=("case", "disturbed", *(_COLUMNS[name][0] for name in shown)),
        rows=tuple(_row(row, shown) for row in rows),
        notes=(*_why_disturbed(rows), *_why_missing(rows)),
    )


def _row(row: CaseSummary, shown: Sequence[str]) -> tuple[str, ...]:
    cells = [_COLUMNS[name][1](row.values[name].value) if name in row.values else "–" for name in shown]
    return (one_line(row.case.name), f"{row.degraded_trials} of {row.trials}", *cells)


def _why_disturbed(rows: Sequence[CaseSummary]) -> list[str]:
    told = [f"{one_line(row.case.name)}: {one_line(row.degraded)}." for row in rows if row.degraded]
    # the numbers stand in the table: a few show which limits were passed
    more = [f"{len(told) - _MOST_REASONS} more cases alike."] if len(told) > _MOST_REASONS else []
    return [*told[:_MOST_REASONS], *more]


def _why_missing(rows: Sequence[CaseSummary]) -> list[str]:
    """Return why columns have no number, those with the same reason together."""
    reasons: dict[str, list[str]] = {}
    for name in _COLUMNS:
        for row in rows:
            if (reason := row.absent.get(name)) and name not in reasons.setdefault(reason, []):
                reasons[reason].append(name)
    return [f"No {_either(names)}: {one_line(reason)}." for reason, names in reasons.items()]


def _either(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
