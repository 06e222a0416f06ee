"""Time the parts of a step on all ranks at once, on one rank.

Before each repetition all ranks wait for each other, and the slowest counts. What is compared takes turns, so
that a drift of the machine affects it alike. Each kind of rates has a part of the seconds; what it leaves is
for the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from distbench.core.case import TORCH_DTYPE_NAMES
from distbench.ipc.trial_files import PhaseTimer, TrialInstructions
from distbench.jobs.probe import LAYOUT, RATES, ProbeOptions
from distbench.jobs.probe.clock import MAX_REPETITIONS, MIN_REPETITIONS, SharedClock, measured_row, repeat
from distbench.jobs.probe.collectives import GroupPlace, collective_rates, rates_in_step
from distbench.jobs.probe.probed_model import ProbedModel
from distbench.prediction.known_models import layout_rows
from distbench.strategies.base import RankContext
from distbench.worker.trainer import RankResult, Rows
from distbench.workloads.layouts import layout_of

_COPY_BYTES = {"cpu": 64 << 20, "cuda": 512 << 20}
"""Bytes of an array that is copied: more than caches hold."""
_MATMUL_ROWS = {"cpu": 512, "cuda": 4096}
"""Rows of the square matrices that are multiplied: enough for arithmetic to decide."""


def run(trial: TrialInstructions, context: RankContext, phases: PhaseTimer) -> RankResult:
    """Return the result of this rank; only rank 0 has rows."""
    asked, precision = trial.job.options_as(ProbeOptions), context.case.precision
    with phases.phase("build"):
        model = ProbedModel(context, asked.samples)
        groups = GroupPlace.join_all(context)
    with phases.phase("probe"):
        clock = SharedClock(context.device, phases)
        rows = [*model.warm_up(clock)]
        known = _layout_rows(context, model) if context.workload.reads_layout else []
        clock.start(asked.seconds)
        rows += _model_rates(model, clock)
        compute, reduce = (_torch_dtype(x) for x in (precision.compute, precision.reduce))
        rows += _matmul_rate(context.device, compute, clock)
        rows += _copy_rate(context.device, clock)
        rows += rates_in_step(model, groups[0], reduce, clock) if groups else []
        rows += collective_rates(groups, reduce, clock)
    model.close()
    if context.rank:
        return RankResult()
    return RankResult(tables={RATES.name: rows, LAYOUT.name: known})


def _layout_rows(context: RankContext, model: ProbedModel) -> Rows:
    """Rows of the layout of *model*, on rank 0."""
    calls = model.record_calls()
    if context.rank:
        return []
    try:
        return layout_rows(replace(layout_of(context.case.workload), calls=tuple(calls)))
    except Exception as error:
        # the user's code: whatever it raises, the rates are measured
        return [{"reason": f"the model can't be read: {type(error).__name__}: {error}"}]


def _model_rates(model: ProbedModel, clock: SharedClock) -> Iterator[dict[str, Any]]:
    """Yield rows of forward and backward passes, and of the updates of all parameters and of half of them."""
    passes: dict[int, list[float]] = {number: [] for number in model.samples}
    updates: dict[int, list[float]] = {}
    for repetition in range(MAX_REPETITIONS):
        if repetition >= MIN_REPETITIONS and clock.left("model") < 0:
            break
        for place, number in enumerate(model.samples):
            passes[number].append(clock.time(partial(model.forward_backward, number)))
            if place == 0:
                model.drop_gradients()
            size = model.gradient_bytes()
            updates.setdefault(size, []).append(clock.time(model.update))
    for number, seconds in passes.items():
        yield measured_row("forward_backward", seconds, samples=number)
    for size, seconds in sorted(updates.items()):
        if size:
            yield measured_row("update", seconds, bytes=size)


def _torch_dtype(name: str) -> torch.dtype:
    return getattr(torch, TORCH_DTYPE_NAMES[name])  # type: ignore[no-any-return]


def _matmul_rate(device: torch.device, dtype: torch.dtype, clock: SharedClock) -> Iterator[dict[str, Any]]:
    """Yield the row of a product of two matrices, whose shape no model decides."""
    rows = _MATMUL_ROWS[device.type]
    left, right, product = (torch.ones(rows, rows, dtype=dtype, device=device) for _ in range(3))
    seconds = repeat(lambda: clock.time(lambda: torch.mm(left, right, out=product)), clock.left("matmul"))
    yield measured_row("matmul", seconds, bytes=left.nbytes + right.nbytes + product.nbytes)


def _copy_rate(device: torch.device, clock: SharedClock) -> Iterator[dict[str, Any]]:
    """Yield the row of a copy in the memory of the device."""
    source = torch.zeros(_COPY_BYTES[device.type], dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    seconds = repeat(lambda: clock.time(lambda: target.copy_(source)), clock.left("copy"))
    yield measured_row("copy", seconds, bytes=source.nbytes + target.nbytes)
