"""Makes one record of the files that the ranks of a trial left."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

from distbench import registry
from distbench.case import Case
from distbench.job import Job
from distbench.metrics.base import OVER_RANKS, Absent, Column, Metric, Trial
from distbench.record import Failure, Record, Status
from distbench.run.watch import Ending
from distbench.trial import result_file
from distbench.workloads.base import Workload

Samples = dict[str, list[list[float | None]]]
Tables = dict[str, list[dict[str, Any]]]


@dataclasses.dataclass(frozen=True)
class Shell:
    """What is known of a record before its ranks are read."""

    run_id: str
    case: Case
    round: int
    job: Job
    started: str
    wall_s: float
    launched: float = 0.0
    """``time.time()`` when the launcher was told to start."""

    def record(self, ending: Ending, **rest: Any) -> Record:
        """Return the record of a trial that ended so."""
        return Record(
            run_id=self.run_id,
            case=self.case,
            case_id=self.case.id,
            round=self.round,
            job=self.job,
            started=self.started,
            wall_s=self.wall_s,
            status=ending.status,
            reason=ending.reason,
            failure=ending.failure,
            **rest,
        )


def collect(
    shell: Shell, ending: Ending, folder: Path, processes: int, metrics: dict[str, Metric], sampled: Tables
) -> Record:
    """Return the record of a trial from what its ranks delivered; one that failed has no values.

    *sampled* is what was seen from outside of the ranks.
    """
    ranks = [_read(result_file(folder, rank)) for rank in range(processes)]
    columns = {column.name: describe(name, column) for name, m in metrics.items() for column in m.columns}
    if any(rank is None for rank in ranks):
        return shell.record(ending, columns=columns, tables=sampled)
    delivered = [rank for rank in ranks if rank is not None]
    workload: Workload = registry.make("workloads", shell.case.workload)
    trial = Trial(
        case=shell.case,
        tokens_per_sample=workload.tokens_per_sample,
        flops_per_sample=workload.flops_per_sample(),
        samples=_samples(delivered),
        phases={"launch": [rank["began"] - shell.launched for rank in delivered], **_phases(delivered)},
        tables={**_tables(delivered), **sampled},
        window=_window(delivered),
        effective=delivered[0]["effective"],
    )
    for name in columns.keys() & delivered[0]["passes"]:
        columns[name]["pass"] = delivered[0]["passes"][name]
    values, absent = _values(metrics, trial)
    absent = {**absent, **delivered[0]["absent"]}
    return shell.record(
        _unless_not_finite(ending, delivered, shell.job),
        columns=columns,
        values=values,
        absent={**{name: "not measured" for name in columns if name not in values}, **absent},
        samples=trial.samples,
        warmup_losses=[rank["warmup_losses"] for rank in delivered],
        tables=trial.tables,
        phases=trial.phases,
        effective=trial.effective,
        environment=delivered[0]["environment"],
        degraded="; ".join(reason for m in metrics.values() if (reason := m.degraded(trial))),
    )


def describe(metric: str, column: Column) -> dict[str, Any]:
    """Return a column's description as a record keeps it."""
    described = {**dataclasses.asdict(column), "metric": metric}
    del described["name"]
    return described


def _read(file: Path) -> dict[str, Any] | None:
    try:
        return dict(json.loads(file.read_text()))
    except FileNotFoundError:
        return None


def _samples(ranks: list[dict[str, Any]]) -> Samples:
    names = {name for rank in ranks for name in rank["samples"]}
    return {name: [rank["samples"].get(name, []) for rank in ranks] for name in sorted(names)}


def _values(metrics: dict[str, Metric], trial: Trial) -> tuple[dict[str, float], dict[str, str]]:
    """Return one number a column, over ranks and steps, and why the others are absent."""
    values: dict[str, float] = {}
    absent: dict[str, str] = {}
    for metric in metrics.values():
        for column in metric.columns:
            if (value := _over_ranks(column, trial.samples.get(column.name))) is not None:
                values[column.name] = value
        try:
            found = metric.summary(trial)
        except Absent as reason:
            absent |= {column.name: str(reason) for column in metric.columns}
            continue
        values |= {name: value for name, value in found.items() if not isinstance(value, Absent)}
        absent |= {name: str(value) for name, value in found.items() if isinstance(value, Absent)}
    return values, absent


def _over_ranks(column: Column, ranks: list[list[float | None]] | None) -> float | None:
    """Return the mean over steps of what the ranks make together; None unless all gave all."""
    if not ranks or any(not rank or None in rank for rank in ranks):
        return None
    whole = [[value for value in rank if value is not None] for rank in ranks]
    over = OVER_RANKS[column.over_ranks]
    steps = [over(step) for step in zip(*whole, strict=True)]
    return math.fsum(steps) / len(steps)


def _tables(ranks: list[dict[str, Any]]) -> Tables:
    names = {name for rank in ranks for name in rank["tables"]}
    return {
        name: [{"rank": i, **row} for i, rank in enumerate(ranks) for row in rank["tables"].get(name, [])]
        for name in sorted(names)
    }


def _window(ranks: list[dict[str, Any]]) -> tuple[float, float]:
    begins, ends = zip(*(rank["window"] for rank in ranks), strict=True)
    return min(begins), max(ends)


def _phases(ranks: list[dict[str, Any]]) -> dict[str, list[float]]:
    return {phase: [rank["phases"][phase] for rank in ranks] for phase in ranks[0]["phases"]}


def _unless_not_finite(ending: Ending, ranks: list[dict[str, Any]], job: Job) -> Ending:
    """Return *ending*, or that the training broke down although the trial ran to its end."""
    found = [(rank["not_finite"]["step"], i) for i, rank in enumerate(ranks) if rank["not_finite"]]
    if ending.status is not Status.MEASURED or not found:
        return ending
    step, rank = min(found)
    told = ranks[rank]["not_finite"]
    reason = f"the {told.get('what', 'loss')} of rank {rank} was {told['value']} at step {step}"
    if told.get("where"):
        reason += f"; {told['where']}"
    failure = Failure(rank=rank, phase="time" if job.kind == "measure" else job.kind)
    return Ending(Status.INVALID_NAN, reason, failure)
