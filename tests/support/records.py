"""Tiny builders of runs and records, for tests that need no process."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from distbench.analysis.run import RunAnalysis
from distbench.core.case import Batch, Case, OptimizerConfig, PluginChoice, PrecisionConfig
from distbench.core.job import JobSpec
from distbench.plan import PlannedCase
from distbench.record import Failure, Record, Status
from distbench.record.run_folder import Run, RunInfo

COLUMNS = {
    "tokens_per_s": {"unit": "tokens/s", "better": "higher", "over_ranks": "first", "doc": "Throughput."},
    "memory_peak": {"unit": "B", "better": "lower", "over_ranks": "max", "doc": "Peak."},
    "comm_bytes": {"unit": "B", "better": "lower", "over_ranks": "max", "doc": "Payload."},
    "final_loss": {"unit": "", "better": "lower", "over_ranks": "mean", "doc": "Loss."},
    "loss": {"unit": "", "better": None, "doc": "Loss of a step."},
}


def case(label: str = "ddp", world_size: int = 2, **changes: Any) -> Case:
    fields: dict[str, Any] = {
        "name": f"{label}/ws{world_size}/mb4/fp32",
        "label": label,
        "strategy": PluginChoice(label),
        "workload": PluginChoice("transformer"),
        "data": PluginChoice("text"),
        "world_size": world_size,
        "device": "cpu",
        "batch": Batch(8, max(1, 8 // world_size), 1),
        "optimizer": OptimizerConfig(),
        "precision": PrecisionConfig(),
        "activation_checkpointing": "none",
        "threads": 1,
        "seed": 1,
    }
    return Case(**{**fields, **changes})


def job_of(kind: str, **options: Any) -> JobSpec:
    return JobSpec.from_json({"kind": kind, "options": options}, kind)


def with_options(job: JobSpec, **changes: Any) -> JobSpec:
    return dataclasses.replace(job, options=dataclasses.replace(job.options, **changes))


def measured(of: Case, tokens_per_s: float = 1000.0, *, round_: int = 0, **values: float) -> Record:
    given = {"tokens_per_s": tokens_per_s, "memory_peak": 1e6, "comm_bytes": 1e5, "final_loss": 2.5, **values}
    return Record(
        run_id="abcd1234",
        case=of,
        case_id=of.id,
        round=round_,
        status=Status.MEASURED,
        reason="",
        started="2026-01-01T00:00:00Z",
        wall_s=1.0,
        columns=COLUMNS,
        values=given,
        samples={"loss": [[3.0, 2.5]] * of.world_size},
        warmup_losses=[[4.0]] * of.world_size,
    )


def communicating(record: Record) -> Record:
    """*record* with one all-reduce of its bytes in a step."""
    size, ranks = record.values["comm_bytes"], record.case.world_size
    row = {"rank": 0, "step": 0, "place": 0, "op": "all_reduce", "dtype": "fp32"}
    return dataclasses.replace(
        record,
        tables={"collectives": [{**row, "group": f"0-{ranks - 1}", "group_size": ranks, "bytes": size}]},
    )


def failed(
    of: Case, reason: str = "rank 1 in time: RuntimeError: no", *, round_: int = 0, **told: Any
) -> Record:
    return Record(
        run_id="abcd1234",
        case=of,
        case_id=of.id,
        round=round_,
        status=told.pop("status", Status.CRASHED),
        reason=reason,
        started="2026-01-01T00:00:00Z",
        wall_s=1.0,
        failure=Failure(rank=1, phase="time", **told),
    )


def unsupported(of: Case, reason: str = "needs a GPU") -> Record:
    return Record("abcd1234", of, of.id, 0, Status.UNSUPPORTED, reason, "2026-01-01T00:00:00Z", 0.0)


def in_bf16(numbers: np.ndarray) -> np.ndarray:
    """*numbers* rounded to the eight bits of a bf16."""
    mantissas, exponents = np.frexp(numbers)
    return np.ldexp(np.round(mantissas * 2**8) / 2**8, exponents)


def info(*cases: Case, name: str = "tiny") -> RunInfo:
    return RunInfo(
        run_id="abcd1234",
        suite_name=name,
        version="0.1.0",
        created="2026-01-01T00:00:00Z",
        state="finished",
        command=["distbench", "run", "tiny.yaml"],
        suite={"name": name},
        machine={},
        cases=[PlannedCase(each) for each in cases],
    )


def run_info(*records: Record, **changes: Any) -> RunInfo:
    """Describe the run of the cases of *records*, with *changes*."""
    cases = {record.case_id: record.case for record in records}
    return dataclasses.replace(info(*cases.values()), **changes)


def run_of(*records: Record, **changes: Any) -> RunAnalysis:
    return RunAnalysis(run_info(*records, **changes), records)


def contradictory_records(run: Run) -> None:
    """Have *run* hold a check whose tables lack what its job says."""
    checked = dataclasses.replace(
        measured(case("fsdp")), job=job_of("check", role="reference", reference="x")
    )
    run.write_record(dataclasses.replace(checked, tables={"check_curve": [], "check_tensors": []}))


def stored_run(folder: Path, *records: Record, **changes: Any) -> Run:
    """Write a run of *records* into *folder*."""
    run = Run.create(folder, run_info(*records, **changes), "strategies: [ddp]\n")
    for record in records:
        run.write_record(record)
    return run
