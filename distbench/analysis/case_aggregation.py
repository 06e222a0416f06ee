"""Summarize the trials of each case of a run."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from distbench.analysis.case_names import is_plain
from distbench.analysis.case_summary import (
    DAMAGED,
    NOT_MEASURED,
    PENDING,
    REFERENCE_LABEL,
    SPEED_COLUMNS,
    THROUGHPUT,
    UNMEASURED,
    CaseSummary,
)
from distbench.analysis.cost import column_descriptions, cost_estimates, device_cost
from distbench.analysis.estimate import Estimate
from distbench.analysis.losses.case_losses import finite_values, mean_losses
from distbench.analysis.settings import varying_settings
from distbench.analysis.statistics.intervals import intervals
from distbench.analysis.verdicts import collect_verdicts
from distbench.analysis.wire_traffic import COLUMN_DOCS as WIRE_COLUMN_DOCS
from distbench.analysis.wire_traffic import WIRE_BYTES, wire_values
from distbench.core.case import CURRENT_ENVIRONMENT, Case, CaseField
from distbench.core.grouping import group_by
from distbench.core.job import MEASURE, job_kind
from distbench.ipc.trial_files import log_file
from distbench.record import Record, Status, records_of_kind
from distbench.record.record_reader import DamagedTrial
from distbench.record.run_folder import Run, RunInfo
from distbench.strategies.base import SPEED_BASELINE
from distbench.suite.cost import DeviceCost

# throughput is relative to cases that differ only in strategy: the number or the size of the batch's parts,
# which are larger if ranks share rows, is the same
_RELATIVE_GROUPS: tuple[tuple[CaseField, ...], ...] = (
    ("strategy", "environment", "batch.micro_batch_size"),
    ("strategy", "environment", "batch.gradient_accumulation_steps"),
    # at last to one with another loader, other variables or another framework
    ("strategy", "environment", "batch.micro_batch_size", "loader", "env", "engine"),
    ("strategy", "environment", "batch.gradient_accumulation_steps", "loader", "env", "engine"),
)
_UNKNOWN_COLUMN = {"unit": "", "better": None, "over_ranks": "", "doc": "Not described by its record."}
_WIRE_COLUMNS = {
    name: {"unit": "B", "better": "lower" if name == WIRE_BYTES else None, "over_ranks": "mean", "doc": doc}
    for name, doc in WIRE_COLUMN_DOCS.items()
}
# an interrupted trial has no information about its case; any other outcome does
_NOT_FAILURES = (Status.CANCELLED, Status.UNSUPPORTED)


def summarize_cases(
    info: RunInfo, records: Sequence[Record], damaged: Sequence[DamagedTrial] = ()
) -> list[CaseSummary]:
    """Summarize the cases of a run, in the order of the suite.

    Args:
        damaged: Trials that can't be read; no number includes them.
    """
    unreadable = {trial.case_id: trial for trial in damaged if trial.folder == job_kind(MEASURE).folder}
    judged = collect_verdicts(info.suite, records)
    records = records_of_kind(records, MEASURE)
    by_case = group_by(records, lambda record: record.case_id)
    cases = {item.case.id: item.case for item in info.cases}
    # a run folder may hold records of cases that run.json does not name: show them too
    cases |= {record.case_id: record.case for record in records if record.case_id not in cases}
    rows = [
        dataclasses.replace(
            _summary(case, by_case[case_id])
            if case_id in by_case
            else _without_record(case, info, unreadable.get(case_id)),
            verdicts=judged.get(case_id, {}),
        )
        for case_id, case in cases.items()
    ]
    rows = _add_costs(_add_intervals(rows), device_cost(info.suite))
    # for the same work the last one wins: the first in the suite, of the current environment if it has one
    others = [row for row in rows if row.case.environment != CURRENT_ENVIRONMENT]
    ours = [row for row in rows if row.case.environment == CURRENT_ENVIRONMENT]
    last = [*reversed(others), *reversed(ours)]
    references = {
        work: row for row in last if is_plain(row.case, SPEED_BASELINE) for work in _relative_keys(row.case)
    }
    known = (
        (row, [references[work] for work in _relative_keys(row.case) if work in references]) for row in rows
    )
    relatives = ((row, _relative_throughput(row, found[0] if found else None)) for row, found in known)
    return [
        dataclasses.replace(row, relative_throughput=ratio, relative_absence=why)
        for row, (ratio, why) in relatives
    ]


def _relative_keys(case: Case) -> list[tuple[object, ...]]:
    """Keys of the work of *case* without its strategy; a case may have several."""
    return [(but, case.work_key(but)) for but in _RELATIVE_GROUPS]


def _without_record(case: Case, info: RunInfo, damaged: DamagedTrial | None) -> CaseSummary:
    """Summarize a case without records; *damaged* is its unreadable trial, if any."""
    if damaged:
        return CaseSummary(case, DAMAGED, damaged.problem, 0, 0, relative_absence=damaged.problem)
    asked = info.suite.get(MEASURE, {}).get("trials") != 0
    word, reason = (PENDING, "not run yet") if asked else (UNMEASURED, "measure.trials = 0")
    return CaseSummary(case, word, reason, 0, 0, relative_absence=reason)


def _summary(case: Case, records: list[Record]) -> CaseSummary:
    good = [record for record in records if record.status is Status.MEASURED]
    bad = [record for record in records if record.status is not Status.MEASURED]
    worst = min(bad, key=lambda record: record.status in _NOT_FAILURES, default=None)
    row = CaseSummary(case, Status.MEASURED, "", len(good), len(bad), columns=_columns(records))
    if worst:
        row = dataclasses.replace(
            row,
            status=worst.status,
            failure_status=worst.status,
            reason=worst.reason,
            failure=worst.failure,
            log=_failure_log(worst),
        )
    return _with_numbers(row, good) if good else row


def _with_numbers(row: CaseSummary, good: list[Record]) -> CaseSummary:
    reason = f"{row.failed} of {row.trials + row.failed} trials failed: {row.reason}" if row.failed else ""
    sound = [record for record in good if not record.degraded]
    counted = sound or good
    values = _estimates(counted, row.columns)
    wire, unknown_wire = _wire_estimates(counted[0])
    reasons = {name: _absence_reason(counted, name) for name in row.columns if name not in values}
    return dataclasses.replace(
        row,
        status=Status.MEASURED,
        reason=reason,
        degraded_trials=len(good) - len(sound),
        degraded="" if sound else good[0].degraded,
        values=values | wire,
        columns=row.columns | _WIRE_COLUMNS,
        absence_reasons=reasons | unknown_wire,
        losses=mean_losses(counted[0]),
        representative_trial=counted[0],
        varying_settings=varying_settings(good),
    )


def _wire_estimates(record: Record) -> tuple[dict[str, Estimate], dict[str, str]]:
    """Bytes on the wire of the trial that stands for the case, and reasons for unknown ones."""
    values, reasons = wire_values(record)
    return {
        name: Estimate(value, value, value, 1, (value,), (record.round,)) for name, value in values.items()
    }, reasons


def _columns(records: list[Record]) -> dict[str, dict[str, Any]]:
    """Columns of all *records*; a foreign record may lack some or all of a description."""
    columns: dict[str, dict[str, Any]] = {}
    for record in records:
        for name in (*record.columns, *record.values):
            columns.setdefault(name, _UNKNOWN_COLUMN | record.columns.get(name, {}))
    return columns


def _estimates(records: list[Record], columns: dict[str, dict[str, Any]]) -> dict[str, Estimate]:
    estimates = {}
    for name, column in columns.items():
        if values := finite_values(record.values.get(name) for record in records):
            is_peak = (column["unit"], column["over_ranks"]) == ("B", "max")
            estimates[name] = Estimate(
                max(values) if is_peak else statistics.median(values),
                min(values),
                max(values),
                len(values),
                tuple(values),
                tuple(record.round for record in records if finite_values([record.values.get(name)])),
                is_peak=is_peak,
            )
    return estimates


def _add_intervals(rows: Sequence[CaseSummary]) -> list[CaseSummary]:
    """Add intervals to the rates of *rows*; cases on the same number of devices share their noise."""
    found: dict[str, dict[str, Estimate]] = {row.case.id: dict(row.values) for row in rows}
    for same_size in group_by(rows, lambda row: row.case.world_size).values():
        for column in SPEED_COLUMNS:
            known = [row for row in same_size if row.positive_trials(column)]
            made = intervals([row.positive_trials(column) for row in known])
            for row, interval in zip(known, made, strict=True):
                estimate = row.values[column]
                found[row.case.id][column] = dataclasses.replace(
                    estimate, value=interval.value, interval=interval
                )
    return [dataclasses.replace(row, values=found[row.case.id]) for row in rows]


def _add_costs(rows: list[CaseSummary], cost: DeviceCost | None) -> list[CaseSummary]:
    """Add cost columns to *rows* if the price of a device is known."""
    if cost is None:
        return rows
    made = []
    for row in rows:
        found = (
            cost_estimates(speed, row.case.world_size, cost) if (speed := row.values.get(THROUGHPUT)) else {}
        )
        columns = {**row.columns, **column_descriptions(cost)}
        made.append(dataclasses.replace(row, values={**row.values, **found}, columns=columns))
    return made


def _absence_reason(records: list[Record], name: str) -> str:
    if any(name in record.values for record in records):
        return "not a finite number"
    return next((record.absent[name] for record in records if name in record.absent), NOT_MEASURED)


def _failure_log(record: Record) -> str:
    """Log of the rank that failed, relative to the run's folder."""
    if record.failure is None or record.failure.rank is None:
        return ""
    return log_file(Run(Path()).trial_folder(record.case, record.round), record.failure.rank).as_posix()


def _relative_throughput(row: CaseSummary, reference: CaseSummary | None) -> tuple[float | None, str]:
    if THROUGHPUT not in row.values:
        return None, row.absence_reasons.get(THROUGHPUT, f"{row.status}: no throughput")
    if row.degraded:
        return None, f"measured on a noisy machine: {row.degraded}"
    if reference is None:
        return None, f"the run has no {REFERENCE_LABEL} at this world size that does the same work"
    if reference.degraded:
        return (
            None,
            f"{REFERENCE_LABEL} at this world size was measured on a noisy machine: {reference.degraded}",
        )
    base = reference.values.get(THROUGHPUT)
    if base is None or not base.value:
        return None, f"{REFERENCE_LABEL} at this world size has no throughput ({reference.status})"
    return row.values[THROUGHPUT].value / base.value, ""
