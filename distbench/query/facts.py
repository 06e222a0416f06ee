"""Rows of the tables of runs, cases and trials, from their JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from distbench.analysis.case_summary import CaseSummary
from distbench.analysis.run import RunAnalysis
from distbench.core.case import Case
from distbench.query.tables import CASE_COLUMNS, TRIAL_FACTS
from distbench.record import Record, RecordRow, Status
from distbench.record.record_reader import DamagedTrial
from distbench.record.run_folder import RunInfo
from distbench.views.base import View

_FACTS = {column.name for column in TRIAL_FACTS}
_TOLD_BY_TRACES = (
    *(column.name for column in CASE_COLUMNS),
    *("status", "reason", "trials", "failed", "device"),
)
"""Columns of ``cases`` that are known of traces."""


def run_row(
    info: RunInfo, records: Sequence[Record], damaged: Sequence[DamagedTrial], folder: Path
) -> RecordRow:
    """Row of ``runs``."""
    machine = info.machine
    gpus = machine.get("gpus")
    return {
        "run_id": info.run_id,
        "suite": info.suite_name,
        "created": info.created,
        "state": info.state,
        "version": info.version,
        "cases": len(info.cases),
        "trials": len(records),
        "measured": sum(record.status is Status.MEASURED for record in records),
        "damaged": sum(each.is_trial for each in damaged),
        "cpu": machine.get("cpu"),
        "cpu_cores": machine.get("cpu_cores"),
        "memory_bytes": machine.get("memory_bytes"),
        "gpus": None if gpus is None else len(gpus),
        "gpu": gpus[0] if gpus else None,
        "machine": json.dumps(machine),
        "folder": str(folder),
    }


def case_rows(info: RunInfo, records: Sequence[Record], damaged: Sequence[DamagedTrial]) -> list[RecordRow]:
    """Rows of ``cases`` for one run."""
    # samples are not needed here, and loading them is slow
    bare = [dataclasses.replace(record, samples={}, warmup_losses=[]) for record in records]
    rows = [_case_row(info.run_id, row) for row in RunAnalysis(info, bare, damaged).cases]
    # of a training, traces tell only what identifies the case here
    return [{key: row[key] for key in _TOLD_BY_TRACES} for row in rows] if info.is_trace else rows


def _case_row(run_id: str, row: CaseSummary) -> RecordRow:
    case = row.case
    return {
        **case_key(run_id, case, case.id),
        "status": row.status,
        "reason": row.reason,
        "trials": row.trials,
        "failed": row.failed,
        "strategy_name": case.strategy.name,
        "strategy_options": json.dumps(case.strategy.options),
        "workload": case.workload.name,
        "workload_options": json.dumps(case.workload.options),
        "data": case.data.name,
        "device": case.device,
        **dataclasses.asdict(case.batch),
        "precision": case.precision.compute,
        "reduce_dtype": case.precision.reduce,
        "master_dtype": case.precision.master,
        "optimizer_state_dtype": case.precision.optimizer_state,
        "optimizer": case.optimizer.name,
        "lr": case.optimizer.lr,
        "optimizer_options": json.dumps(dataclasses.asdict(case.optimizer)),
        "activation_checkpointing": case.activation_checkpointing,
        "compile": case.compile,
        "threads": case.threads,
        "seed": case.seed,
        "initial_weights": case.initial_weights,
        "loader_workers": case.loader.workers,
        "environment": case.environment,
        "env": json.dumps(case.env),
        "engine": case.engine.name,
    }


def trial_row(record: Record) -> RecordRow:
    """Row of ``trials``: facts, and each number under the name of its column."""
    failure = record.failure
    return {
        **_outcome(record),
        "degraded": record.degraded,
        "nodes": len(record.nodes) or None,
        "failed_rank": failure.rank if failure else None,
        "failed_phase": failure.phase if failure else None,
    }


def rank_rows(record: Record) -> list[RecordRow]:
    """Rows of ``ranks``, without measurements."""
    placed = sorted({*range(len(record.devices)), *(rank for own in record.nodes.values() for rank in own)})
    return [_rank_row(record, rank) for rank in placed]


def _rank_row(record: Record, rank: int) -> RecordRow:
    device = record.devices[rank] if rank < len(record.devices) else None
    return {
        "rank": rank,
        "node": record.node_of(rank) or None,
        "device": device.kind if device else None,
        "gpu": device.index if device else None,
        "gpu_uuid": (device.uuid or None) if device else None,
    }


def job_row(record: Record) -> RecordRow:
    """Row of ``jobs``: facts, and each number under the name of its column."""
    options = json.dumps(record.job.to_json()["options"])
    return {**_outcome(record), "kind": record.job.kind, "options": options}


def _outcome(record: Record) -> RecordRow:
    return {
        **trial_key(record),
        "status": str(record.status),
        "reason": record.reason,
        "started": record.started,
        "wall_s": record.wall_s,
        "launches": len(record.attempts) + 1,
        "absent": json.dumps(record.absent),
        "effective": json.dumps(record.effective),
        "environment": json.dumps(record.environment),
        **{value_column_name(name): value for name, value in record.values.items()},
    }


def view_rows(run: RunAnalysis, view: View) -> list[RecordRow]:
    """Rows of the table of *view* for one run."""
    return [{"run_id": run.info.run_id, **row} for row in view.table(run).records()]


def value_column_name(name: str) -> str:
    """Column of ``trials`` for the value *name*: a metric can't replace a fact."""
    return f"{name}_" if name.casefold() in _FACTS else name


def trial_key(record: Record) -> RecordRow:
    """Columns that identify the trial of a row."""
    return {**case_key(record.run_id, record.case, record.case_id), "round": record.round}


def case_key(run_id: str, case: Case, case_id: str) -> RecordRow:
    """Columns that identify the case of a row."""
    return {
        "run_id": run_id,
        "case_id": case_id,
        "case_name": case.name,
        "strategy": case.label,
        "world_size": case.world_size,
    }


def is_timed(record: Record, name: str) -> bool:
    """True if the column *name* has a sample for each step of the ``time`` pass."""
    column = record.columns.get(name, {})
    if "pass" in column:
        return bool(column.get("per_step")) and column["pass"] == "time"
    # format 1 did not record it: a column with as many samples as step times is of the same steps
    return _shape(record, name) == _shape(record, "step_s")


def _shape(record: Record, name: str) -> list[int]:
    return [len(steps) for steps in record.samples.get(name, [])]
