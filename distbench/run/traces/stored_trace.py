"""Keep traces that were read as an ordinary run with one case and one trial.

What a trace tells has the columns and tables of measured trials; everything else is absent, with the reason.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from distbench import __version__
from distbench.analysis.traces.job_trace import JobTrace
from distbench.core.case import MAX_WORLD_SIZE, Case
from distbench.core.columns import RANK_REDUCTIONS
from distbench.core.errors import UsageError
from distbench.metrics.base import Metric
from distbench.metrics.communication import Communication
from distbench.metrics.convergence import ConvergenceMetric
from distbench.metrics.memory import Memory
from distbench.metrics.profile import Profile
from distbench.metrics.steptime import StepTime
from distbench.metrics.throughput import Throughput
from distbench.plan import PlannedCase
from distbench.record import RankDevice, Record, Status
from distbench.record.run_folder import RUN_FILE, TRACE_KEY, Run, RunInfo, new_run_id, utc_now
from distbench.run.results import column_description
from distbench.run.scripts.measurement import suite_text
from distbench.run.scripts.script_results import NO_THEORY, provisional_case
from distbench.run.traces.trace_rows import (
    COLLECTIVES,
    NOTES,
    TIMELINE,
    collective_rows,
    own_tables,
    timeline_rows,
)
from distbench.run.traces.trace_values import RankValues, common_steps, imbalance, rank_values
from distbench.system.files import slug
from distbench.tables.table import Table

_METRICS: dict[str, Metric] = {
    "steptime": StepTime(),
    "throughput": Throughput(),
    "memory": Memory(),
    "communication": Communication(),
    "profile": Profile(),
    "convergence": ConvergenceMetric(),
}
"""Metrics whose columns the record describes."""
_STEP_DOC = (
    "Length of a step in the trace, on the clock of what computes, with the overhead of the profiler. The "
    "trial's value is the mean of its slowest rank."
)
_UNMARKED = ("data", "forward", "backward", "optimizer", "other")
"""Parts of a step that only the marks of distbench tell apart."""
_NO_MARKS = "a trace does not mark the parts of its steps"
_NOT_TOLD = "a profiler's trace does not tell it"


@dataclasses.dataclass(frozen=True)
class ReadTrace:
    """Traces that were read."""

    job: JobTrace
    tables: Mapping[str, Table]
    """By name."""
    notes: Sequence[str]
    """Sentences on what the traces lack."""


def store_trace(read: ReadTrace, out: Path, words: Sequence[str]) -> Run:
    """Keep the traces *read* as a new run below *out*, started by the command line *words*.

    Raises:
        UsageError: they are not of one training, or the folder can't be created.
        InfrastructureError: the disk is full or the folder is not writable.
    """
    record = trace_record(read, new_run_id())
    run = Run.create(out, _run_info(read.job, record, words), suite_text(words))
    run.write_record(record)
    return run


def kept_files(folder: Path) -> list[Path]:
    """Files of the traces that the run in *folder* keeps; *folder* itself if it is no such run.

    Raises:
        RecordError: ``run.json`` can't be read.
    """
    if not (folder / RUN_FILE).is_file() or not (info := Run(folder).info()).is_trace:
        return [folder]
    return [Path(file) for file in info.suite[TRACE_KEY]["files"]]


def _run_info(job: JobTrace, record: Record, words: Sequence[str]) -> RunInfo:
    files = [rank.path.resolve() for rank in job.ranks]
    name = slug(files[0].parent.name)
    return RunInfo(
        run_id=record.run_id,
        suite_name=name,
        version=__version__,
        created=record.started,
        state="finished",
        command=[*words],
        suite={
            "name": name,
            TRACE_KEY: {"files": [*map(str, files)]},
            "measure": {"steps": max(map(len, record.samples["step_s"]))},
        },
        # this machine did not train, and of the other one traces tell the devices alone
        machine={},
        cases=[PlannedCase(record.case)],
    )


def trace_record(read: ReadTrace, run_id: str) -> Record:
    """Record of the traces *read*.

    Raises:
        UsageError: they are not of one training.
    """
    job, case = read.job, _case(read.job)
    steps = common_steps(job)
    known = {rank.rank: rank for rank in job.ranks}
    devices = sorted({rank.device for rank in job.ranks if rank.device})
    tables = [*own_tables(read.tables), (NOTES, [{"note": note} for note in read.notes])]
    tables += [(COLLECTIVES, collective_rows(job, steps)), (TIMELINE, [*timeline_rows(job, steps)])]
    bare = Record(
        run_id=run_id,
        case=case,
        case_id=case.id,
        round=0,
        status=Status.MEASURED,
        reason="",
        started=utc_now(),
        wall_s=0.0,
        columns=_columns(),
        tables={spec.name: rows for spec, rows in tables if rows},
        environment={"gpu": devices[0], "gpus": devices} if devices else {},
        devices=[
            RankDevice("cuda" if known[rank].is_on_device else "cpu") if rank in known else None
            for rank in range(case.world_size)
        ],
        described_tables={spec.name: spec for spec, _ in tables},
    )
    values = {rank.rank: rank_values(rank, steps[rank.rank], case.world_size) for rank in job.ranks}
    return _with_numbers(bare, values)


def _with_numbers(record: Record, numbers: Mapping[int, tuple[RankValues, dict[str, str]]]) -> Record:
    """Add to *record* the *numbers* of each rank: values, and reasons for the absence of others."""
    columns, ranks = record.columns, range(record.case.world_size)
    samples = {
        name: {rank: values[name] for rank, (values, _) in numbers.items()}
        for name in columns
        if all(name in values for values, _ in numbers.values())
    }
    values = {name: _value(columns[name], of_ranks) for name, of_ranks in samples.items()}
    values["step_s"] = max(map(_mean, samples["step_s"].values()))
    if len(numbers) == len(ranks) > 1 and "work_s" in samples:
        ratio = imbalance(samples["work_s"])
        values |= {} if ratio is None else {"imbalance": ratio}
    absent = dict.fromkeys(columns, _NOT_TOLD)
    absent |= dict.fromkeys((f"profile_{part}_s" for part in _UNMARKED), _NO_MARKS)
    absent |= dict.fromkeys(("comm_bytes_theory", "memory_states_theory"), NO_THEORY)
    for _, reasons in numbers.values():
        absent |= reasons
    passes = {name: {"pass": "time" if name == "step_s" else "profile"} for name in samples}
    return dataclasses.replace(
        record,
        columns={name: {**column, **passes.get(name, {})} for name, column in columns.items()},
        values=values,
        absent={name: why for name, why in absent.items() if name not in values},
        samples={name: [of.get(rank, []) for rank in ranks] for name, of in samples.items()},
    )


def _case(job: JobTrace) -> Case:
    """The training as far as traces tell it: its ranks, and the kind of their devices."""
    sizes = {rank.world_size for rank in job.ranks if rank.world_size is not None}
    if len(sizes) > 1:
        listed = ", ".join(map(str, sorted(sizes)))
        raise UsageError(
            f"the traces are of jobs of different world sizes ({listed}); keep those of each job apart"
        )
    ranks = max(*sizes, 1, *(rank.rank + 1 for rank in job.ranks))
    if ranks > MAX_WORLD_SIZE:
        raise UsageError(f"the traces are of {ranks:,} ranks; a run has at most {MAX_WORLD_SIZE:,}")
    device = "cuda" if any(rank.is_on_device for rank in job.ranks) else "cpu"
    return provisional_case(device, ranks, "trace")


def _columns() -> dict[str, dict[str, Any]]:
    """Descriptions of the columns of all metrics."""
    found = {
        column.name: column_description(name, column)
        for name, metric in _METRICS.items()
        for column in metric.columns
    }
    found["step_s"]["doc"] = _STEP_DOC
    return found


def _value(column: Mapping[str, Any], of_ranks: Mapping[int, Sequence[float | None]]) -> float:
    """Mean over the steps of the value over the ranks whose traces are there."""
    over = RANK_REDUCTIONS[column["over_ranks"]]
    return _mean([over([each or 0.0 for each in step]) for step in zip(*of_ranks.values(), strict=True)])


def _mean(values: Sequence[float | None]) -> float:
    return math.fsum(value or 0.0 for value in values) / len(values)
