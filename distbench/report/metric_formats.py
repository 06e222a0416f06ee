"""Numbers of a run as text that continuous benchmarking services and Prometheus read, for standard output."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from distbench.analysis.case_summary import EXACT_COLUMNS, CaseSummary
from distbench.analysis.estimate import Estimate
from distbench.core.text import escape_openmetrics_label, one_line
from distbench.core.units import format_count

_COSTS = ("step_s", "memory_peak", "comm_wire_bytes", "comm_calls")
"""Columns of which less is better, as ``customSmallerIsBetter`` requires of all."""
_MEASURES = ("tokens_per_s", *_COSTS, "final_loss")


def metric_absences(row: CaseSummary) -> dict[str, str]:
    """Column -> reason why it is not exported; all columns are if the case trains differently."""
    reasons = {}
    for name in _MEASURES:
        if row.differs:
            reasons[name] = "the case is not equivalent to its reference"
        elif name not in row.values:
            reasons[name] = one_line(row.absence_reasons.get(name, row.reason or row.status))
        elif row.degraded and name not in EXACT_COLUMNS:
            reasons[name] = f"measured on a noisy machine: {one_line(row.degraded)}"
    return reasons


def has_numbers(row: CaseSummary) -> bool:
    """True if any column of the case is exported."""
    return len(metric_absences(row)) < len(_MEASURES)


def to_action_benchmark(suite: str, rows: Sequence[CaseSummary]) -> str:
    """JSON of github-action-benchmark's tool ``customSmallerIsBetter`` (its README, "Custom Benchmarks")."""
    entries: list[dict[str, Any]] = []
    for row, name, estimate in _numbers(rows, _COSTS):
        low, high = estimate.bounds
        entries.append(
            {
                "name": one_line(f"{suite}: {row.case.name}: {name}"),
                # of the costs only the number of collectives has no unit
                "unit": row.columns[name]["unit"] or "calls",
                "value": estimate.value,
                "range": f"{low:.6g} to {high:.6g}",
                "extra": format_count(estimate.trial_count, "trial"),
            }
        )
    return json.dumps(entries, indent=2)


def to_bencher(_suite: str, rows: Sequence[CaseSummary]) -> str:
    """JSON in the Bencher Metric Format (bencher.dev/docs/reference/bencher-metric-format)."""
    benchmarks: dict[str, dict[str, dict[str, float]]] = {}
    for row, name, estimate in _numbers(rows, _MEASURES):
        low, high = estimate.bounds
        measure = {"value": estimate.value, "lower_value": low, "upper_value": high}
        benchmarks.setdefault(one_line(row.case.name), {})[name] = measure
    return json.dumps(benchmarks, indent=2)


def to_openmetrics(suite: str, rows: Sequence[CaseSummary]) -> str:
    """A gauge per column, with a sample per case (openmetrics.io, 1.0)."""
    numbers = list(_numbers(rows, _MEASURES))
    lines = []
    for name in _MEASURES:
        of_name = [(row, estimate) for row, column, estimate in numbers if column == name]
        if of_name:
            lines += [
                f"# TYPE distbench_{name} gauge",
                f"# HELP distbench_{name} {_help(of_name[0][0], name)}",
            ]
        for row, estimate in of_name:
            labels = {"suite": suite, "case": row.case.name}
            pairs = ",".join(f'{key}="{escape_openmetrics_label(text)}"' for key, text in labels.items())
            lines.append(f"distbench_{name}{{{pairs}}} {estimate.value!r}")
    return "\n".join([*lines, "# EOF"])


METRIC_FORMATS: Mapping[str, Callable[[str, Sequence[CaseSummary]], str]] = {
    "github-action-benchmark": to_action_benchmark,
    "bencher": to_bencher,
    "openmetrics": to_openmetrics,
}
"""Name of a format -> function of a suite's name and its cases."""


def _numbers(
    rows: Sequence[CaseSummary], columns: Sequence[str]
) -> Iterator[tuple[CaseSummary, str, Estimate]]:
    for row in rows:
        absent = metric_absences(row)
        yield from ((row, name, row.values[name]) for name in columns if name not in absent)


def _help(row: CaseSummary, name: str) -> str:
    column = row.columns[name]
    unit = f" Unit: {column['unit']}." if column["unit"] else ""
    return escape_openmetrics_label(f"{column['doc']}{unit}")
