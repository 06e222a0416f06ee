"""Fit of a predicted peak into the memory of a machine, and changes that need less."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from distbench.core import registry
from distbench.core.case import Case
from distbench.core.machine import Machine
from distbench.plan.memory_capacity import memory_capacity
from distbench.prediction.estimates import MemoryPrediction, PredictedValue
from distbench.prediction.memory import predict_memory
from distbench.strategies.pp import PipelineParallel

MemoryFit = Literal["yes", "no", "unsure"]

_RESERVED = 1.06 * 1.122
"""Most that CUDA's caching allocator reserves for the bytes of tensors. On 18 rows that torchtitan publishes
for H100s it was 1.06 times a formula of them, with errors of up to 12.2 %."""
_PROCESS_BYTES = 0.5 * 2**30
"""Memory of a CPU rank besides tensors: interpreter, libraries and buffers of threads. 294 to 492 MiB in 41
trials with torch 2.13 (``memory_resident_peak`` less ``memory_peak``)."""
_SHARE = 0.95
"""Share of a memory that may be full, as in the example of ``limits.predicted_memory``. The CUDA context and
NCCL take some of the rest; how much was not measured."""
_FULL = "activation_checkpointing: full"


def fits(prediction: MemoryPrediction, case: Case, machine: Machine) -> MemoryFit:
    """Answer whether every rank of *case* has room for the predicted peak on *machine*.

    ``no``: the tensors alone need more than there is, at the low end of the interval. ``yes``: there is room
    for the high end with all that comes on top. ``unsure``: neither, or the memory is unknown.
    """
    room = memory_capacity(case, machine)
    if room is None:
        return "unsure"
    if not room.fits(prediction.peak.low):
        return "no"
    is_gpu = case.device == "cuda"
    most = prediction.peak.high * _RESERVED if is_gpu else prediction.peak.high + _PROCESS_BYTES
    return "yes" if room.fits(most, _SHARE) else "unsure"


def memory_advice(case: Case, machine: Machine | None) -> list[tuple[str, PredictedValue]]:
    """Changes of *case* that lower its peak, as keys of a suite, each with the peak in bytes that results.

    The same samples in smaller micro-batches, full recomputation, and both. Empty: no formula has its memory,
    or nothing lowers it.

    Args:
        machine: Machine on which micro-batches are halved until they may fit; None: unknown, halve them once.
    """
    now = predict_memory(case)
    if isinstance(now, str):
        return []
    found = []
    for text, changed in _changes(case, machine):
        prediction = predict_memory(changed)
        if not isinstance(prediction, str) and prediction.peak.value < now.peak.value:
            found.append((text, prediction.peak))
    return found


def _changes(case: Case, machine: Machine | None) -> Iterator[tuple[str, Case]]:
    smaller = _smaller_batch(case, machine)
    if smaller is not None:
        yield _batch_text(smaller), smaller
    if case.activation_checkpointing == "full":
        return
    again = replace(case, activation_checkpointing="full")
    yield _FULL, again
    both = _smaller_batch(again, machine)
    if both is not None:
        yield f"{_batch_text(both)} with {_FULL}", both


def _batch_text(case: Case) -> str:
    return f"batch.micro_batch_size: {case.batch.micro_batch_size}"


def _smaller_batch(case: Case, machine: Machine | None) -> Case | None:
    """*case* with the largest halved micro-batch that may fit, or the smallest; None: it can't be halved."""
    if machine is None:
        return _halved(case)
    smaller = None
    while (halved := _halved(smaller or case)) is not None:
        smaller = halved
        prediction = predict_memory(smaller)
        if isinstance(prediction, str) or fits(prediction, smaller, machine) != "no":
            break
    return smaller


def _halved(case: Case) -> Case | None:
    """*case* with half the micro-batch, and twice as many; None: it can't be halved."""
    strategy, batch = registry.create_plugin("strategies", case.strategy), case.batch
    # a pipeline splits it further
    parts = strategy.micro_batches if isinstance(strategy, PipelineParallel) else 1
    if batch.micro_batch_size % (2 * parts) or getattr(strategy, "optimizer_in_backward", False):
        return None
    half, steps = batch.micro_batch_size // 2, 2 * batch.gradient_accumulation_steps
    return replace(case, batch=replace(batch, micro_batch_size=half, gradient_accumulation_steps=steps))
