"""JSON of a run for ``show --json``: valid JSON, null for unknown values."""

from __future__ import annotations

import dataclasses
from typing import Any

from distbench.analysis.case_summary import CaseSummary
from distbench.analysis.job_results import job_results
from distbench.analysis.parity import SettingDifference
from distbench.analysis.run import RunAnalysis
from distbench.core.serialization import replace_nonfinite
from distbench.record import Record, records_of_kind

_NOT_REPORTED = "not reported"
"""Value of a setting that an engine did not report, for programs."""
_LEGACY_KEYS = ("convergence", "equivalence")
"""Kinds whose verdicts had their own keys before ``verdicts`` had those of all kinds."""


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
