"""Merge the result files of all ranks, and what was sampled outside of them, into one record."""

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from distbench.core import registry
from distbench.core.case import Case
from distbench.core.columns import RANK_REDUCTIONS, Column
from distbench.core.job import job_kind
from distbench.ipc.trial_files import RankError, partial_result_file, result_file
from distbench.metrics.base import (
    COMPUTED_TOKENS,
    Metric,
    NotAvailable,
    Sampler,
    TrialData,
    sampler_failure,
)
from distbench.record import Failure, RankDevice, Record, Samples, Status
from distbench.strategies.base import Strategy
from distbench.strategies.description import StrategyDescription
from distbench.workloads.base import Workload

Tables = dict[str, list[dict[str, Any]]]


@dataclasses.dataclass(frozen=True)
class SamplerResults:
    """Results of metrics that sampled outside the ranks of a trial."""

    tables: Tables
    failed: dict[str, str]
    """Metric -> reason why its sampler failed: only its numbers are absent."""


@contextmanager
def run_samplers(case: Case, metrics: Mapping[str, Metric]) -> Iterator[SamplerResults]:
    """Run the samplers of *metrics* on this machine during the body; it yields their results to be."""
    results = SamplerResults({}, {})
    with ExitStack() as running:
        for name, metric in metrics.items():
            if sampler := metric.sampler(case):
                running.callback(_stop_sampler, sampler, name, results)
        yield results


def _stop_sampler(sampler: Sampler, name: str, results: SamplerResults) -> None:
    try:
        results.tables[name] = sampler.stop()
    except Exception as error:
        # an error of a plug-in or a driver's library costs its own numbers only
        results.failed[name] = sampler_failure(name, error)


def build_record(
    record: Record,
    launched_at: float,
    folder: Path,
    processes: int,
    metrics: dict[str, Metric],
    sampler_results: SamplerResults,
) -> Record:
    """Add the ranks' results to the outcome *record*; a failed trial has no values.

    Args:
        launched_at: ``clock.now()`` at launch.
    """
    ranks = [
        _read_json(result_file(folder, rank)) or _read_json(partial_result_file(folder, rank))
        for rank in range(processes)
    ]
    record = dataclasses.replace(record, devices=_devices(ranks, folder))
    columns, _ = _described_columns(record, metrics)
    if any(rank is None for rank in ranks) or record.status is not Status.MEASURED:
        return dataclasses.replace(record, columns=columns, tables=sampler_results.tables)
    delivered = [rank for rank in ranks if rank is not None]
    workload: Workload = registry.create_plugin("workloads", record.case.workload)
    strategy: Strategy = registry.create_plugin("strategies", record.case.strategy)
    return merge_ranks(
        record,
        launched_at,
        delivered,
        metrics,
        sampler_results,
        workload.tokens_per_sample,
        strategy.description(),
    )


def merge_ranks(
    record: Record,
    launched_at: float,
    delivered: list[dict[str, Any]],
    metrics: dict[str, Metric],
    sampler_results: SamplerResults,
    tokens_per_sample: float,
    description: StrategyDescription | None,
) -> Record:
    """Merge what all ranks *delivered* into the measured *record*.

    Args:
        launched_at: ``clock.now()`` at launch.
        description: That of the strategy; None: it is not known.
    """
    columns, described = _described_columns(record, metrics)
    tables = [
        *job_kind(record.job.kind).tables,
        *(spec for metric in metrics.values() for spec in metric.tables),
    ]
    samples = _samples(delivered)
    trial = TrialData(
        case=record.case,
        tokens_per_sample=_computed_tokens(record.case, samples) or tokens_per_sample,
        flops_per_sample=_whole_number(samples, "flops_per_sample"),
        recomputed_flops_per_sample=_whole_number(samples, "recomputed_flops_per_sample"),
        samples=samples,
        absent=delivered[0]["absent"],
        phases={"launch": [rank["began"] - launched_at for rank in delivered], **_phases(delivered)},
        tables={**_tables(delivered), **sampler_results.tables},
        window=(min(rank["window"][0] for rank in delivered), max(rank["window"][1] for rank in delivered)),
        effective=delivered[0]["effective"],
        nodes=record.nodes,
    )
    for name in columns.keys() & delivered[0]["passes"]:
        columns[name]["pass"] = delivered[0]["passes"][name]
    stated = dict.fromkeys(rank.get("degraded", "") for rank in delivered)
    whole = {name: metric for name, metric in metrics.items() if name not in sampler_results.failed}
    values, absent = _values(
        whole, [column for name, column in described if name not in sampler_results.failed], trial
    )
    # the reason of rank 0, or of the first rank that has one
    absent |= {name: why for rank in reversed(delivered) for name, why in rank["absent"].items()}
    lost = {name: metric for name, metric in metrics.items() if name in sampler_results.failed}
    absent |= {column.name: sampler_results.failed[name] for name in lost for column in lost[name].columns}
    return dataclasses.replace(
        _mark_non_finite(record, delivered),
        columns=columns,
        values=values,
        absent={
            **{name: record.reason or "not measured" for name in columns if name not in values},
            **absent,
        },
        samples=trial.samples,
        warmup_losses=[rank["warmup_losses"] for rank in delivered],
        tables=trial.tables,
        phases=trial.phases,
        effective=trial.effective,
        environment=delivered[0]["environment"],
        code=[rank["code"] for rank in delivered],
        described_strategy=description and description.limited_to(trial.effective),
        described_tables={spec.name: spec for spec in tables if spec.name in trial.tables},
        degraded="; ".join(filter(None, [*stated, *(m.degraded_reason(trial) for m in whole.values())])),
    )


def _described_columns(
    record: Record, metrics: Mapping[str, Metric]
) -> tuple[dict[str, dict[str, Any]], list[tuple[str, Column]]]:
    """Descriptions of all columns for the record, and the columns with the names of their metrics."""
    kind = job_kind(record.job.kind)
    described = [(name, column) for name, metric in metrics.items() for column in metric.columns]
    described += [(kind.name, column) for column in kind.columns]
    return {column.name: column_description(name, column) for name, column in described}, described


def column_description(metric: str, column: Column) -> dict[str, Any]:
    """A column's description, as stored in a record."""
    described = {**dataclasses.asdict(column), "metric": metric}
    del described["name"]
    return described


def _read_json(file: Path) -> dict[str, Any] | None:
    try:
        return dict(json.loads(file.read_text()))
    except FileNotFoundError:
        return None


def _devices(ranks: list[dict[str, Any] | None], folder: Path) -> list[RankDevice | None]:
    """Device of each rank, as reported in its result or its error; empty if no rank reported one."""
    devices = [
        rank.get("device") if rank else error.device if (error := RankError.read(folder, number)) else None
        for number, rank in enumerate(ranks)
    ]
    return [RankDevice(**device) if device else None for device in devices] if any(devices) else []


def _samples(ranks: list[dict[str, Any]]) -> Samples:
    names = {name for rank in ranks for name in rank["samples"]}
    return {name: [rank["samples"].get(name, []) for rank in ranks] for name in sorted(names)}


def _whole_number(samples: Samples, name: str) -> int | None:
    """The number *name* of rank 0; None if it reported none."""
    return next((int(number) for number in samples.get(name, [[]])[0] if number is not None), None)


def _computed_tokens(case: Case, samples: Samples) -> float | None:
    """Tokens per sample of the timed steps, padding included; None: those of the workload."""
    ranks = samples.get(COMPUTED_TOKENS, [])
    tokens = [count for rank in ranks for count in rank if count is not None]
    if not tokens:
        return None
    # ranks that split a model share samples, and one process may have those of several devices
    shares = case.batch.total_micro_batches // case.batch.gradient_accumulation_steps
    return math.fsum(tokens) / len(tokens) * min(shares, len(ranks)) / case.batch.global_batch_size


def _values(
    metrics: dict[str, Metric], columns: list[Column], trial: TrialData
) -> tuple[dict[str, float], dict[str, str]]:
    """One number per column, over ranks and steps, and reasons for absent ones."""
    over_ranks = {
        column.name: _reduce_over_ranks(column, trial.samples.get(column.name)) for column in columns
    }
    values = {name: value for name, value in over_ranks.items() if value is not None}
    absent: dict[str, str] = {}
    for metric in metrics.values():
        try:
            summary = metric.summary(trial)
        except NotAvailable as reason:
            absent |= {column.name: str(reason) for column in metric.columns}
            continue
        values |= {name: value for name, value in summary.items() if not isinstance(value, NotAvailable)}
        absent |= {name: str(value) for name, value in summary.items() if isinstance(value, NotAvailable)}
    return values, absent


def _reduce_over_ranks(column: Column, ranks: list[list[float | None]] | None) -> float | None:
    """Mean over steps of the value over ranks; None unless every rank has every sample."""
    if not ranks or any(not rank or None in rank for rank in ranks):
        return None
    complete = [[value for value in rank if value is not None] for rank in ranks]
    over = RANK_REDUCTIONS[column.over_ranks]
    steps = [over(step) for step in zip(*complete, strict=True)]
    return math.fsum(steps) / len(steps)


def _tables(ranks: list[dict[str, Any]]) -> Tables:
    names = {name for rank in ranks for name in rank["tables"]}
    return {
        name: [{"rank": i, **row} for i, rank in enumerate(ranks) for row in rank["tables"].get(name, [])]
        for name in sorted(names)
    }


def _phases(ranks: list[dict[str, Any]]) -> dict[str, list[float]]:
    # a failed rank has not taken part in all of them
    all_have = [phase for phase in ranks[0]["phases"] if all(phase in rank["phases"] for rank in ranks)]
    return {phase: [rank["phases"][phase] for rank in ranks] for phase in all_have}


def _mark_non_finite(record: Record, ranks: list[dict[str, Any]]) -> Record:
    """Return the measured *record*, with ``INVALID_NAN`` if a value was not finite."""
    affected = [(rank["not_finite"]["step"], i) for i, rank in enumerate(ranks) if rank["not_finite"]]
    if not affected:
        return record
    step, rank = min(affected)
    report = ranks[rank]["not_finite"]
    reason = f"the {report.get('what', 'loss')} of rank {rank} was {report['value']} at step {step}"
    if report.get("where"):
        reason += f"; {report['where']}"
    failure = Failure(rank=rank, phase=report.get("phase", record.job.kind))
    return dataclasses.replace(record, status=Status.INVALID_NAN, reason=reason, failure=failure)
