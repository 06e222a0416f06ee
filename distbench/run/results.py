"""Turns the files that the ranks of a trial left into one record."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

from distbench.core import registry
from distbench.core.columns import OVER_RANKS, Column
from distbench.core.job import job_kind
from distbench.ipc.trial_files import error_file, interim_file, result_file
from distbench.metrics.base import Absent, Metric, Trial
from distbench.record import Failure, RankDevice, Record, Status
from distbench.strategies.base import Strategy
from distbench.workloads.base import Workload

Samples = dict[str, list[list[float | None]]]
Tables = dict[str, list[dict[str, Any]]]


@dataclasses.dataclass(frozen=True)
class SamplerResults:
    """What metrics sampled outside the ranks of a trial."""

    tables: Tables
    failed: dict[str, str]
    """Metric -> why its sampler failed: it has no numbers, and the trial has all others."""


def collect(
    ended: Record,
    launched: float,
    folder: Path,
    processes: int,
    metrics: dict[str, Metric],
    sampled: SamplerResults,
) -> Record:
    """*ended*, the record of how a trial ended, with its ranks' results; a failed trial has no values.

    Args:
        launched: ``clock.now()`` at launch.
    """
    ranks = [
        _read(result_file(folder, rank)) or _read(interim_file(folder, rank)) for rank in range(processes)
    ]
    ended = dataclasses.replace(ended, devices=_devices(ranks, folder))
    kind = job_kind(ended.job.kind)
    described = [(name, column) for name, metric in metrics.items() for column in metric.columns]
    described += [(kind.name, column) for column in kind.columns]
    columns = {column.name: describe(name, column) for name, column in described}
    tables = [*kind.tables, *(spec for metric in metrics.values() for spec in metric.tables)]
    if any(rank is None for rank in ranks) or ended.status is not Status.MEASURED:
        return dataclasses.replace(ended, columns=columns, tables=sampled.tables)
    delivered = [rank for rank in ranks if rank is not None]
    workload: Workload = registry.make("workloads", ended.case.workload)
    samples = _samples(delivered)
    trial = Trial(
        case=ended.case,
        tokens_per_sample=workload.tokens_per_sample,
        flops_per_sample=_whole_number(samples, "flops_per_sample"),
        recomputed_flops_per_sample=_whole_number(samples, "recomputed_flops_per_sample"),
        samples=samples,
        absent=delivered[0]["absent"],
        phases={"launch": [rank["began"] - launched for rank in delivered], **_phases(delivered)},
        tables={**_tables(delivered), **sampled.tables},
        window=(min(rank["window"][0] for rank in delivered), max(rank["window"][1] for rank in delivered)),
        effective=delivered[0]["effective"],
        nodes=ended.nodes,
    )
    for name in columns.keys() & delivered[0]["passes"]:
        columns[name]["pass"] = delivered[0]["passes"][name]
    stated = dict.fromkeys(rank.get("degraded", "") for rank in delivered)
    whole = {name: metric for name, metric in metrics.items() if name not in sampled.failed}
    values, absent = _values(
        whole, [column for name, column in described if name not in sampled.failed], trial
    )
    # the reason of rank 0, or of the first rank that has one
    absent |= {name: why for rank in reversed(delivered) for name, why in rank["absent"].items()}
    lost = {name: metric for name, metric in metrics.items() if name in sampled.failed}
    absent |= {column.name: sampled.failed[name] for name in lost for column in lost[name].columns}
    strategy: Strategy = registry.make("strategies", ended.case.strategy)
    return dataclasses.replace(
        _unless_not_finite(ended, delivered),
        columns=columns,
        values=values,
        absent={**{name: ended.reason or "not measured" for name in columns if name not in values}, **absent},
        samples=trial.samples,
        warmup_losses=[rank["warmup_losses"] for rank in delivered],
        tables=trial.tables,
        phases=trial.phases,
        effective=trial.effective,
        environment=delivered[0]["environment"],
        described_strategy=strategy.description().of(trial.effective),
        described_tables={spec.name: spec for spec in tables if spec.name in trial.tables},
        degraded="; ".join(filter(None, [*stated, *(m.degraded(trial) for m in whole.values())])),
    )


def describe(metric: str, column: Column) -> dict[str, Any]:
    """A column's description, as stored in a record."""
    described = {**dataclasses.asdict(column), "metric": metric}
    del described["name"]
    return described


def _read(file: Path) -> dict[str, Any] | None:
    try:
        return dict(json.loads(file.read_text()))
    except FileNotFoundError:
        return None


def _devices(ranks: list[dict[str, Any] | None], folder: Path) -> list[RankDevice | None]:
    """Device of each rank, as it told in its result or its error; none if no rank told."""
    told = [rank or _read(error_file(folder, number)) or {} for number, rank in enumerate(ranks)]
    devices = [RankDevice(**rank["device"]) if "device" in rank else None for rank in told]
    return devices if any(devices) else []


def _samples(ranks: list[dict[str, Any]]) -> Samples:
    names = {name for rank in ranks for name in rank["samples"]}
    return {name: [rank["samples"].get(name, []) for rank in ranks] for name in sorted(names)}


def _whole_number(samples: Samples, name: str) -> int | None:
    """The number *name* of rank 0, or None if it gave none."""
    return next((int(number) for number in samples.get(name, [[]])[0] if number is not None), None)


def _values(
    metrics: dict[str, Metric], columns: list[Column], trial: Trial
) -> tuple[dict[str, float], dict[str, str]]:
    """One number per column, over ranks and steps, and why the others are absent."""
    over_ranks = {column.name: _over_ranks(column, trial.samples.get(column.name)) for column in columns}
    values = {name: value for name, value in over_ranks.items() if value is not None}
    absent: dict[str, str] = {}
    for metric in metrics.values():
        try:
            summary = metric.summary(trial)
        except Absent as reason:
            absent |= {column.name: str(reason) for column in metric.columns}
            continue
        values |= {name: value for name, value in summary.items() if not isinstance(value, Absent)}
        absent |= {name: str(value) for name, value in summary.items() if isinstance(value, Absent)}
    return values, absent


def _over_ranks(column: Column, ranks: list[list[float | None]] | None) -> float | None:
    """Mean over steps of the value over ranks; None unless every rank has every sample."""
    if not ranks or any(not rank or None in rank for rank in ranks):
        return None
    complete = [[value for value in rank if value is not None] for rank in ranks]
    over = OVER_RANKS[column.over_ranks]
    steps = [over(step) for step in zip(*complete, strict=True)]
    return math.fsum(steps) / len(steps)


def _tables(ranks: list[dict[str, Any]]) -> Tables:
    names = {name for rank in ranks for name in rank["tables"]}
    return {
        name: [{"rank": i, **row} for i, rank in enumerate(ranks) for row in rank["tables"].get(name, [])]
        for name in sorted(names)
    }


def _phases(ranks: list[dict[str, Any]]) -> dict[str, list[float]]:
    # a rank that failed has not been in all of them
    all_have = [phase for phase in ranks[0]["phases"] if all(phase in rank["phases"] for rank in ranks)]
    return {phase: [rank["phases"][phase] for rank in ranks] for phase in all_have}


def _unless_not_finite(ended: Record, ranks: list[dict[str, Any]]) -> Record:
    """*ended*, or with ``INVALID_NAN`` if the training failed although the trial ran to its end."""
    affected = [(rank["not_finite"]["step"], i) for i, rank in enumerate(ranks) if rank["not_finite"]]
    if ended.status is not Status.MEASURED or not affected:
        return ended
    step, rank = min(affected)
    report = ranks[rank]["not_finite"]
    reason = f"the {report.get('what', 'loss')} of rank {rank} was {report['value']} at step {step}"
    if report.get("where"):
        reason += f"; {report['where']}"
    failure = Failure(rank=rank, phase=report.get("phase", ended.job.kind))
    return dataclasses.replace(ended, status=Status.INVALID_NAN, reason=reason, failure=failure)
