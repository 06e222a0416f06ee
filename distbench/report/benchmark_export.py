"""Export cases to the format of pytest-benchmark by its own code, so its commands can compare them.

The sample is the trial: a round is one launch, its time the mean step time of that launch. Steps of one
launch are not independent samples, and are never exported as such.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pytest_benchmark.plugin import pytest_benchmark_generate_json
from pytest_benchmark.stats import Metadata
from pytest_benchmark.storage.file import FileStorage
from pytest_benchmark.utils import get_machine_id

from distbench.analysis.case_summary import CaseSummary
from distbench.core.errors import UsageError
from distbench.core.text import one_line
from distbench.record.run_folder import RunInfo
from distbench.system.files import infrastructure_errors, slug

BENCHMARK_COLUMN = "step_s"
_EXTRA_COLUMNS = ("tokens_per_s", "memory_peak", "comm_bytes")


def refusal(row: CaseSummary) -> str:
    """Reason why the times of a case may not be compared; empty if they may."""
    if BENCHMARK_COLUMN not in row.values:
        return one_line(row.absence_reasons.get(BENCHMARK_COLUMN, f"{row.status}: no step time"))
    if row.differs:
        return "it is not equivalent to its reference"
    return f"measured on a noisy machine: {one_line(row.degraded)}" if row.degraded else ""


def make_benchmark(suite: str, run_id: str, steps: int, row: CaseSummary) -> Metadata:
    """A case of *suite* as a benchmark: seconds of a step, a round for each trial.

    It is identified by suite and case, not by the location of a test, so benchmarks run by pytest and those
    exported from a run can be compared. *steps* are the timed ones of each trial; *row* has a step time.
    """
    case = row.case
    known = [name for name in _EXTRA_COLUMNS if name in row.values]
    # attributes that pytest-benchmark reads from the fixture of its own benchmarks
    source = SimpleNamespace(
        name=one_line(case.name),
        fullname=one_line(f"{suite}::{case.name}"),
        group=one_line(suite),
        param=one_line(case.label),
        cprofile_stats=None,
        has_error=False,
        params={
            "strategy": one_line(case.label),
            "world_size": case.world_size,
            "global_batch_size": case.batch.global_batch_size,
            "micro_batch_size": case.batch.micro_batch_size,
            "precision": case.precision.compute,
            "device": case.device,
        },
        extra_info={
            "run_id": run_id,
            "case_id": case.id,
            **{name: row.values[name].as_median.value for name in known},
            "units": {name: row.columns[name]["unit"] for name in known},
            "absent": {
                name: row.absence_reasons.get(name, "not measured")
                for name in _EXTRA_COLUMNS
                if name not in known
            },
            "failed_trials": row.failed,
        },
    )
    timer = f"distbench {BENCHMARK_COLUMN}, mean over the timed steps"
    made = Metadata(source, iterations=steps, options={"timer": timer})
    for seconds in row.values[BENCHMARK_COLUMN].trials:
        made.stats.update(seconds)
    return made


def save(info: RunInfo, rows: Sequence[CaseSummary], into: Path) -> None:
    """Write cases of a run into the storage folder *into*, where ``pytest-benchmark compare`` looks.

    Raises:
        UsageError: the storage has this run already.
        InfrastructureError: the file can't be written.
    """
    name = f"{slug(info.suite_name)}-{slug(info.run_id)}"
    storage = FileStorage(into, logger=logging.getLogger(__name__), default_machine_id=get_machine_id())
    if there := storage.query(f"*_{name}"):
        # a comparison with itself would always pass
        raise UsageError(f"{there[0]}: the run was exported before; nothing was written")
    if not info.suite:
        raise UsageError("run.json is damaged, and only it has the steps of a trial; see distbench check RUN")
    steps = info.suite["measure"]["steps"]
    content = pytest_benchmark_generate_json(
        config=None,
        benchmarks=[make_benchmark(info.suite_name, info.run_id, steps, row) for row in rows],
        include_data=True,
        machine_info=_machine(info),
        # a run does not record its commit
        commit_info={"id": "unknown", "time": None, "dirty": None, "project": info.suite_name},
    )
    content["datetime"] = info.created.replace("Z", "+00:00")
    with infrastructure_errors(into):
        storage.save(content, name)


def _machine(info: RunInfo) -> dict[str, Any]:
    """Machine of the run, which need not be this one, under pytest-benchmark's names."""
    machine = info.machine
    system, _, release = str(machine.get("system", "")).partition(" ")
    return {
        "python_version": machine.get("python"),
        "system": system,
        "release": release,
        "cpu": {"brand_raw": machine.get("cpu"), "count": machine.get("cpu_cores")},
        "gpus": machine.get("gpus"),
        "packages": machine.get("packages"),
    }
