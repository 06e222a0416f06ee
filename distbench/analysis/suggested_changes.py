"""Changes of settings that may help against the limit of a step, and keep the training the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from distbench.analysis.step_limit_kinds import Limit
from distbench.core import registry
from distbench.core.case import Case
from distbench.optimizers import entry_of
from distbench.plan.setting_changes import SettingChange

_BUCKET_FACTOR = 4
_FIRST_WORKERS = 2
_INTERLEAVED, _ZERO_BUBBLE = "Interleaved1F1B", "ZBVZeroBubble"


def suggested_changes(case: Case, limit: Limit) -> list[SettingChange]:
    """Changes of *case* that may help against *limit*, most promising first; empty: none that keeps the work.

    The samples of an optimizer step, the dtypes and the number of devices stay as they are. Whether a change
    can be planned is not checked.
    """
    changes = _CHANGES.get(limit)
    return [SettingChange(key, value) for key, value in changes(case)] if changes else []


_Changes = Iterator[tuple[str, Any]]


def _data(case: Case) -> _Changes:
    workers = case.loader.workers or 0
    yield "loader.workers", 2 * workers or _FIRST_WORKERS
    if workers and not case.loader.persistent_workers:
        yield "loader.persistent_workers", True


def _bubble(case: Case) -> _Changes:
    if case.strategy.name != "pp":
        return
    strategy = _strategy(case)
    yield "pp.micro_batches", 2 * strategy.micro_batches
    for schedule in (_INTERLEAVED, _ZERO_BUBBLE):
        if strategy.schedule != schedule:
            yield "pp.schedule", schedule
    if strategy.split != "time":
        yield "pp.split", "time"


def _communication(case: Case) -> _Changes:
    strategy, accumulates = _strategy(case), case.batch.gradient_accumulation_steps > 1
    match case.strategy.name:
        case "ddp":
            yield "ddp.bucket_cap_mb", strategy.bucket_cap_mb * _BUCKET_FACTOR
            yield "ddp.bucket_cap_mb", strategy.bucket_cap_mb / _BUCKET_FACTOR
        case "fsdp":
            if accumulates and strategy.reduce_each_micro_batch:
                yield "fsdp.reduce_each_micro_batch", False
            if strategy.sharding == "full":
                yield "fsdp.sharding", "grad_op"
        case "zero":
            if not strategy.overlap_comm:
                yield "zero.overlap_comm", True
    yield from _larger_micro_batch(case)


def _latency(case: Case) -> _Changes:
    strategy = _strategy(case)
    match case.strategy.name:
        case "ddp":
            larger = strategy.bucket_cap_mb * _BUCKET_FACTOR
            yield "ddp.bucket_cap_mb", max(larger, type(strategy)().bucket_cap_mb)
        case "fsdp":
            if case.batch.gradient_accumulation_steps > 1 and strategy.reduce_each_micro_batch:
                yield "fsdp.reduce_each_micro_batch", False
        case "zero":
            # DeepSpeed's default bucket holds most models whole
            if strategy.reduce_bucket_size is not None:
                yield "zero.reduce_bucket_size", strategy.reduce_bucket_size * _BUCKET_FACTOR**2
    yield from _larger_micro_batch(case)


def _recomputation(case: Case) -> _Changes:
    for policy in ("selective", "none"):
        if case.activation_checkpointing not in (policy, "none"):
            yield "activation_checkpointing", policy


def _offload(case: Case) -> _Changes:
    strategy = _strategy(case)
    match case.strategy.name:
        case "zero":
            for option in ("offload_parameters", "offload_optimizer"):
                if getattr(strategy, option) != "none":
                    yield f"zero.{option}", "none"
        case "fsdp":
            if strategy.cpu_offload:
                yield "fsdp.cpu_offload", False
    yield from _larger_micro_batch(case)


def _optimizer(case: Case) -> _Changes:
    for kernel in entry_of(case.optimizer).kernels:
        if kernel not in (case.optimizer.kernel, "loop"):
            yield "optimizer.kernel", kernel
    if case.strategy.name == "ddp" and not _strategy(case).sharded_optimizer:
        yield "ddp.sharded_optimizer", True


def _host(case: Case) -> _Changes:
    yield from _larger_micro_batch(case)
    yield from _compiled(case)


def _strategy(case: Case) -> Any:
    """Strategy of *case*, with every option; a case names only those that existed in format 3."""
    return registry.create_plugin("strategies", case.strategy)


def _compiled(case: Case) -> _Changes:
    if case.compile == "none":
        yield "compile", True


def _larger_micro_batch(case: Case) -> _Changes:
    """Twice the micro-batch, half the accumulation: the same samples per step."""
    if case.batch.gradient_accumulation_steps % 2 == 0:
        yield "batch.micro_batch_size", 2 * case.batch.micro_batch_size


_CHANGES: Mapping[Limit, Callable[[Case], _Changes]] = {
    "data": _data,
    "bubble": _bubble,
    "communication": _communication,
    "latency": _latency,
    "recomputation": _recomputation,
    "offload": _offload,
    "optimizer": _optimizer,
    "host": _host,
    "computation": _compiled,
}
"""By limit; noise and uneven ranks are not mended by a setting of a suite."""
