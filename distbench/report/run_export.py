"""A run as JSON for ``show --json``, and any table of its records without a view of its own.

The JSON is valid, with null for unknown values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from distbench.analysis.case_summary import CaseSummary
from distbench.analysis.job_results import job_results
from distbench.analysis.parity import SettingDifference
from distbench.analysis.run import RunAnalysis
from distbench.core import registry
from distbench.core.columns import TableSpec
from distbench.core.job import job_kinds
from distbench.core.serialization import replace_nonfinite
from distbench.core.text import one_line
from distbench.record import Record, records_of_kind
from distbench.tables.table import Field, Table, TableRow
from distbench.views.base import CASE_FIELDS, case_cells

_NOT_REPORTED = "not reported"
"""Value of a setting that an engine did not report, for programs."""
_LEGACY_KEYS = ("convergence", "equivalence")
"""Kinds whose verdicts had their own keys before ``verdicts`` had those of all kinds."""

_UNDESCRIBED = "Not described by its record."
_CASE_FIELDS = tuple(replace(each, heading="") for each in CASE_FIELDS)
_ROUND_FIELD = Field("round", "round", "Which trial of the case, from 0 on.", type="bigint")
_RANK_FIELD = Field("rank", "rank", "Rank, from 0 on.", type="bigint")


def run_json(run: RunAnalysis) -> dict[str, Any]:
    """*run* as plain JSON types."""
    own_keys: dict[str, Any] = {}
    for results in job_results().values():
        if records := records_of_kind(run.records, results.kind.name):
            own_keys |= replace_nonfinite(results.run_json(records))
    return {
        "run_id": run.info.run_id,
        "suite": run.info.suite_name,
        "state": run.info.state,
        "damaged": [trial.to_json() for trial in run.damaged],
        "retried": [_retry_json(record) for record in run.records if record.attempts],
        "cases": [_case_json(row, run) for row in run.cases],
        **own_keys,
    }


def _case_json(row: CaseSummary, run: RunAnalysis) -> dict[str, Any]:
    failure = row.failure
    return {
        "case": row.case.name,
        "case_id": row.case.id,
        "strategy": row.case.label,
        "label": row.case.label,
        "world_size": row.case.world_size,
        "status": row.status,
        "reason": row.reason,
        "trials": row.trials,
        "failed_trials": row.failed,
        "degraded_trials": row.degraded_trials,
        "degraded": row.degraded,
        "relative_to_ddp": row.relative_throughput,
        "relative_absent": row.relative_absence,
        "values": {name: _estimate_json(row, name) for name in row.values},
        "absent": row.absence_reasons,
        **{kind: _verdict_detail(row, kind) for kind in _LEGACY_KEYS},
        "verdicts": {kind: verdict.to_json() for kind, verdict in row.verdicts.items()},
        "parity": [_difference_json(each) for each in run.parity.findings.get(row.case.id, ())],
        "failure": {"rank": failure.rank, "phase": failure.phase, "log": row.log} if failure else None,
    }


def _retry_json(record: Record) -> dict[str, Any]:
    """A trial that was relaunched after a failure."""
    return {
        "case": record.case.name,
        "case_id": record.case_id,
        "job": record.job.kind,
        "round": record.round,
        "status": record.status,
        "attempts": [
            {key: value for key, value in dataclasses.asdict(attempt).items() if key != "failure"}
            for attempt in record.attempts
        ],
    }


def _difference_json(difference: SettingDifference) -> dict[str, Any]:
    plain = dataclasses.asdict(difference)
    return {key: _NOT_REPORTED if value is None else value for key, value in plain.items()}


def _verdict_detail(row: CaseSummary, kind: str) -> dict[str, Any] | None:
    if kind not in row.verdicts:
        return None
    plain = row.verdicts[kind].to_json()
    return {"verdict": plain["word"], **(plain["detail"] or {})}


def _estimate_json(row: CaseSummary, name: str) -> dict[str, Any]:
    column = row.columns[name]
    estimate = row.values[name]
    return {
        # programs have read this value since the first version
        "value": estimate.as_median.value,
        "low": estimate.low,
        "high": estimate.high,
        "n": estimate.trial_count,
        "trials": estimate.trials,
        "rounds": estimate.rounds,
        "interval": estimate.interval.to_json() if estimate.interval else None,
        "unit": column["unit"],
        "better": column["better"],
    }


def record_table_names(run: RunAnalysis) -> list[str]:
    """Names of the tables in *run*, in the order of its records."""
    return list(dict.fromkeys(name for record in run.records for name in record.tables))


def record_table(run: RunAnalysis, name: str) -> Table:
    """All rows of the table *name*, with its columns as the records describe them."""
    records = [record for record in run.records if name in record.tables]
    spec = _spec(records, name)
    fields = [
        *_CASE_FIELDS,
        _ROUND_FIELD,
        *_fields(spec, [row for record in records for row in record.tables[name]]),
    ]
    names = {field.name for field in fields}
    rows = [_row(record, row, names) for record in records for row in record.tables[name]]
    return Table(name, spec.doc if spec else _UNDESCRIBED, tuple(fields), tuple(rows))


def _row(record: Record, row: Mapping[str, Any], names: Container[str]) -> TableRow:
    # a foreign record may hold anything
    cells = {
        key: value if isinstance(value, str | int | float | None) else str(value)
        for key, value in row.items()
        if key in names
    }
    return TableRow({**cells, **case_cells(record.case), "round": record.round}, one_line(record.case.name))


def _spec(records: Sequence[Record], name: str) -> TableSpec | None:
    """Description of the table: by the records, else by the metric or kind of job that writes it today."""
    tables = [
        *(m.tables for m in registry.built_in_plugins("metrics").values()),
        *(kind.tables for kind in job_kinds()),
    ]
    built_in = [spec for specs in tables for spec in specs]
    described = [record.described_tables[name] for record in records if name in record.described_tables]
    return next((spec for spec in [*described, *built_in] if spec.name == name), None)


def _fields(spec: TableSpec | None, rows: Sequence[Mapping[str, Any]]) -> list[Field]:
    columns = {column.name: column for column in spec.columns} if spec else {}
    fields = [_RANK_FIELD] if any("rank" in row for row in rows) else []
    for name in dict.fromkeys([*columns, *(key for row in rows for key in row)]):
        if known := columns.get(name):
            fields.append(Field(name, name, known.doc, known.unit, type=known.type))
        elif name not in ("rank", "round", *(each.name for each in CASE_FIELDS)):
            type_ = _type([row[name] for row in rows if row.get(name) is not None])
            fields.append(Field(name, name, _UNDESCRIBED, type=type_))
    return fields


def _type(values: Sequence[Any]) -> Literal["varchar", "bigint", "double"]:
    if any(isinstance(value, str) for value in values):
        return "varchar"
    return "bigint" if values and all(isinstance(value, int) for value in values) else "double"
