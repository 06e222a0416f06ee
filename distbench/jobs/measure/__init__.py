"""``measure``: time, memory and communication of each case."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, get_args

from distbench.core import registry
from distbench.core.case import Case, Measure
from distbench.core.columns import Column
from distbench.core.job import JobKind, PlannedTrial
from distbench.core.machine import Machine
from distbench.core.suite_mistakes import SuiteMistake
from distbench.metrics.base import Pass
from distbench.metrics.profile import WARM_STEPS
from distbench.strategies.base import Strategy


@dataclass(frozen=True)
class Measuring(JobKind):
    """Time, memory and communication of each case, with nothing switched on that slows it down."""

    name: ClassVar[str] = "measure"
    folder: ClassVar[str] = "trials"
    section: ClassVar[type] = Measure
    always: ClassVar[bool] = True
    with_metrics: ClassVar[bool] = True
    columns: ClassVar[tuple[Column, ...]] = (
        Column(
            "loss",
            "",
            None,
            "mean",
            "Training loss of a step before its update, the mean over the global batch, in nats; ranks hold "
            "equal shares, so the mean over ranks is the mean over the batch.",
            per_step=True,
        ),
        Column(
            "flops_per_sample",
            "",
            None,
            "first",
            "Model FLOPs of a forward and a backward pass of one sample: by the workload's formula (PaLM, "
            "arXiv 2204.02311, appendix B), else as torch's FlopCounterMode counts them of tensors without "
            "memory. Both count matrix products, convolutions and attention alone, without recomputation and "
            "without a causal discount. A frozen parameter has no gradient, and so no FLOPs for it.",
        ),
        Column(
            "recomputed_flops_per_sample",
            "",
            None,
            "first",
            "Part of flops_per_sample that activation checkpointing computes again: by the workload's "
            "formula, else counted in the same way with the layers checkpointed.",
        ),
    )
    phases: ClassVar[tuple[str, ...]] = (*get_args(Pass), "flops")
    order: ClassVar[int] = 100

    def tasks(self, section: Measure, cases: Sequence[Case], machine: Machine) -> Iterator[PlannedTrial]:
        if section.order == "sequential":
            return (PlannedTrial(case, i) for case in cases for i in range(section.trials))
        # every second round reversed: a drift over the run weighs on all cases alike
        orders = (list(cases), list(reversed(cases)))
        return (PlannedTrial(case, i) for i in range(section.trials) for case in orders[i % 2])

    def problems(self, section: Measure, cases: Sequence[Case]) -> list[SuiteMistake]:
        if section.trials and any(case.precision.float8_emulated for case in cases):
            message = "emulated float8 has no speed to measure; set measure.trials: 0 and ask for check: {}"
            return [SuiteMistake(("precision", "float8_emulated"), message, True)]
        wrong = [_not_begun(section, case, since) for case, since in _late(section, cases)[:1]]
        return wrong + _parts_of_cycles(section, cases)

    def steps(self, task: PlannedTrial, measure: Measure) -> int:
        """Those of all passes; one cycle is counted."""
        timed = measure.warmup + measure.steps + measure.unsynced_steps
        counted, profiled = cycle_of([task.case]), profile_steps(task.case, measure)
        return timed + counted + profiled + measure.check_steps

    def is_idle(self, section: Measure) -> bool:
        return section.trials == 0


def cycle_of(cases: Iterable[Case]) -> int:
    """Steps after which the communication of all *cases* repeats."""
    return math.lcm(*(_strategy(case).cycle for case in cases))


def profile_steps(case: Case, measure: Measure) -> int:
    """Steps of *case* under the profiler: whole cycles, after those that are left out."""
    cycles = math.ceil(measure.profile_steps / (cycle := cycle_of([case])))
    return cycles and cycles * cycle + WARM_STEPS.get(case.device, 0)


def shortened(measure: Measure, cases: Sequence[Case], warmup: int, steps: int) -> Measure:
    """*measure* with one trial of so many steps, and no more than all *cases* need to be planned so."""
    short = replace(measure, warmup=warmup, trials=1, keep_traces=False)
    begun = max([warmup, *(since for _, since in _late(short, cases))])
    whole = math.ceil(steps / (cycle := cycle_of(cases))) * cycle
    return replace(short, warmup=min(begun, measure.warmup), steps=min(whole, measure.steps))


def _strategy(case: Case) -> Strategy:
    strategy: Strategy = registry.make("strategies", case.strategy)
    return strategy


def _parts_of_cycles(section: Measure, cases: Sequence[Case]) -> list[SuiteMistake]:
    """That some of the steps of a cycle would weigh more in a timed window than others."""
    cut = [case for case in cases if section.steps % cycle_of([case])]
    if not cut or not section.trials:
        return []
    whole, one = cycle_of(cases), cycle_of(cut[:1])
    below = section.steps // whole * whole
    nearest = f"{below} or {below + whole}" if below else f"{whole}"
    message = (
        f"the communication of {cut[0].label} repeats every {one} steps, so {section.steps} timed steps "
        f"would have more or less of it than a long training; use {nearest}"
    )
    return [SuiteMistake(("measure", "steps"), message, section.steps)]


def _late(section: Measure, cases: Sequence[Case]) -> list[tuple[Case, int]]:
    """Cases that communicate as they go on only after the timed window has begun, and from which step on."""
    late = [(case, step) for case in cases if (step := _strategy(case).settles) > section.warmup]
    return late if section.trials else []


def _not_begun(section: Measure, case: Case, since: int) -> SuiteMistake:
    message = (
        f"{case.label} communicates otherwise before step {since}, so such steps would be timed; use a "
        f"warm-up of {since} or more steps, or let it begin at step {section.warmup} or before"
    )
    return SuiteMistake(("measure", "warmup"), message, section.warmup)
