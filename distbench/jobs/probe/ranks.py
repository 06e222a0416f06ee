"""Time the parts of a step on all ranks at once, on one rank.

Before each repetition all ranks wait for each other, and the slowest counts. What is compared takes turns, so
that a drift of the machine affects it alike. Each kind of rates has a part of the seconds; what it leaves is
for the next.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from distbench.core.dtypes import TORCH_DTYPE_NAMES
from distbench.ipc.trial_files import PhaseTimer, TrialInstructions
from distbench.jobs.probe import LAYOUT, RATES, ProbeOptions
from distbench.jobs.probe.clock import MAX_REPETITIONS, MIN_REPETITIONS, SharedClock, measured_row
from distbench.jobs.probe.collectives import GroupOfRank, collective_rates, rates_in_step
from distbench.jobs.probe.probed_model import ProbedModel
from distbench.prediction.recorded_layouts import layout_rows
from distbench.strategies.base import RankContext
from distbench.worker.trainer import RankResult, Rows
from distbench.workloads.layouts import model_layout

_COPY_BYTES = {"cpu": 64 << 20, "cuda": 512 << 20}
"""Bytes of an array that is copied: more than caches hold."""
_MATMUL_ROWS = {"cpu": 512, "cuda": 4096}
"""Rows of the square matrices that are multiplied: enough for arithmetic to decide."""
_ORDER = ("forward_backward", "update", "matmul", "copy")
"""Rates of computation, as their rows are ordered."""


def run(trial: TrialInstructions, context: RankContext, phases: PhaseTimer) -> RankResult:
    """Return the result of this rank; only rank 0 has rows."""
    options, precision = trial.job.options_as(ProbeOptions), context.case.precision
    with phases.phase("build"):
        model = ProbedModel(context, options.samples)
        groups = GroupOfRank.join_all(context)
    with phases.phase("probe"):
        clock = SharedClock(context.device, phases)
        rows = [*model.warm_up(clock)]
        known = _layout_rows(context, model) if context.workload.reads_layout else []
        clock.start(options.seconds)
        compute, reduce = (_torch_dtype(x) for x in (precision.compute, precision.reduce))
        rows += _computation_rates(model, partial(_fixed_work, context.device, compute), clock)
        rows += rates_in_step(model, groups[0], reduce, clock) if groups else []
        rows += collective_rates(groups, reduce, clock)
    model.close()
    if context.rank:
        return RankResult()
    return RankResult(tables={RATES.name: rows, LAYOUT.name: known})


def _layout_rows(context: RankContext, model: ProbedModel) -> Rows:
    """Rows of the layout of *model*, on rank 0."""
    # compiled layers call no hooks of the modules inside them
    calls = model.record_calls() if context.case.compile == "none" else []
    if context.rank:
        return []
    try:
        return layout_rows(replace(model_layout(context.case.workload), calls=tuple(calls)))
    except Exception as error:
        # the user's code: whatever it raises, the rates are measured
        return [{"reason": f"the model can't be read: {type(error).__name__}: {error}"}]


@dataclass(frozen=True)
class _FixedWork:
    """Work that no model decides."""

    rate: str
    bytes: int
    call: Callable[[], object]


def _fixed_work(device: torch.device, dtype: torch.dtype) -> list[_FixedWork]:
    """A product of two matrices and a copy of memory, on arrays that live no longer than these."""
    rows = _MATMUL_ROWS[device.type]
    left, right, product = (torch.ones(rows, rows, dtype=dtype, device=device) for _ in range(3))
    source = torch.zeros(_COPY_BYTES[device.type], dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    return [
        _FixedWork(
            "matmul",
            left.nbytes + right.nbytes + product.nbytes,
            lambda: torch.mm(left, right, out=product),
        ),
        _FixedWork("copy", source.nbytes + target.nbytes, lambda: target.copy_(source)),
    ]


def _computation_rates(
    model: ProbedModel, fixed_work: Callable[[], Sequence[_FixedWork]], clock: SharedClock
) -> Iterator[dict[str, Any]]:
    """Yield rows of passes, of the updates of all parameters and of half of them, and of fixed work.

    All take turns, so that they meet the same moments of the machine.
    """
    found: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    for repetition in range(MAX_REPETITIONS):
        if repetition >= MIN_REPETITIONS and clock.remaining_seconds("computation") < 0:
            break
        for place, number in enumerate(model.samples):
            if number == model.samples[-1]:
                # it empties the caches, which matters least for the longest passes
                for work in fixed_work():
                    # memory of new arrays is mapped when it is first touched
                    work.call()
                    found[work.rate, "bytes", work.bytes].append(clock.time(work.call))
            passes = clock.time(partial(model.forward_backward, number))
            found["forward_backward", "samples", number].append(passes)
            if place == 0:
                model.drop_half_of_gradients()
            size = model.gradient_bytes()
            found["update", "bytes", size].append(clock.time(model.update))
    for (rate, unit, amount), seconds in sorted(found.items(), key=lambda item: _ORDER.index(item[0][0])):
        if amount:
            yield measured_row(rate, seconds, **{unit: amount})


def _torch_dtype(name: str) -> torch.dtype:
    return getattr(torch, TORCH_DTYPE_NAMES[name])  # type: ignore[no-any-return]
