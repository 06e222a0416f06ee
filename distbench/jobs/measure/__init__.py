"""``measure``: time, memory and communication of each case."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, get_args

from distbench.core import registry
from distbench.core.case import Case
from distbench.core.columns import Column
from distbench.core.job import JobKind, PlannedTrial
from distbench.core.machine import Machine
from distbench.core.measurement import MeasureConfig
from distbench.core.suite_mistakes import Problem
from distbench.metrics.base import COMPUTED_TOKENS, Pass
from distbench.metrics.profile import WARM_STEPS
from distbench.strategies.base import Strategy


@dataclass(frozen=True)
class MeasureJob(JobKind):
    """Time, memory and communication of each case, with nothing switched on that slows it down."""

    name: ClassVar[str] = "measure"
    folder: ClassVar[str] = "trials"
    section: ClassVar[type] = MeasureConfig
    is_default: ClassVar[bool] = True
    uses_metrics: ClassVar[bool] = True
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
            COMPUTED_TOKENS,
            "tokens",
            None,
            "mean",
            "Tokens that a rank computes in a timed step, padding included. Only where rows have different "
            "numbers of labels.",
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

    def planned_trials(
        self, section: MeasureConfig, cases: Sequence[Case], machine: Machine
    ) -> Iterator[PlannedTrial]:
        if section.order == "sequential":
            return (PlannedTrial(case, i) for case in cases for i in range(section.trials))
        # every second round is reversed: a drift over the run affects all cases alike
        orders = (list(cases), list(reversed(cases)))
        return (PlannedTrial(case, i) for i in range(section.trials) for case in orders[i % 2])

    def problems(self, section: MeasureConfig, cases: Sequence[Case]) -> list[Problem]:
        if section.trials and any(case.precision.float8_emulated for case in cases):
            message = "emulated float8 has no speed to measure; set measure.trials: 0 and check: {}"
            return [Problem(("precision", "float8_emulated"), message, True)]
        wrong = [
            _settling_mistake(section, case, since) for case, since in _settling_cases(section, cases)[:1]
        ]
        return wrong + _partial_cycle_mistakes(section, cases)

    def sequential_steps(self, task: PlannedTrial, measure: MeasureConfig) -> int:
        """Steps of all passes; one cycle is counted."""
        ready = measure.steps if task.case.loader.workers is not None else 0
        timed = measure.warmup + measure.steps + ready + measure.unsynced_steps
        counted, profiled = communication_cycle([task.case]), profile_steps(task.case, measure)
        return timed + counted + profiled + measure.check_steps

    def is_empty(self, section: MeasureConfig) -> bool:
        return section.trials == 0


def communication_cycle(cases: Iterable[Case]) -> int:
    """Number of steps after which the communication of all *cases* repeats."""
    return math.lcm(*(_strategy(case).steps_per_cycle for case in cases))


def profile_steps(case: Case, measure: MeasureConfig) -> int:
    """Steps of *case* under the profiler: whole cycles, after the excluded ones."""
    cycles = math.ceil(measure.profile_steps / (cycle := communication_cycle([case])))
    return cycles and cycles * cycle + WARM_STEPS.get(case.device, 0)


def short_measure(measure: MeasureConfig, cases: Sequence[Case], warmup: int, steps: int) -> MeasureConfig:
    """Return *measure* with one trial of *warmup* and *steps* steps, or more if *cases* need more."""
    short = replace(measure, warmup=warmup, trials=1, keep_traces=False)
    begun = max([warmup, *(since for _, since in _settling_cases(short, cases))])
    whole = math.ceil(steps / (cycle := communication_cycle(cases))) * cycle
    return replace(short, warmup=min(begun, measure.warmup), steps=min(whole, measure.steps))


def _strategy(case: Case) -> Strategy:
    strategy: Strategy = registry.create_plugin("strategies", case.strategy)
    return strategy


def _partial_cycle_mistakes(section: MeasureConfig, cases: Sequence[Case]) -> list[Problem]:
    """Report timed windows with incomplete cycles, in which some steps weigh more than others."""
    cut = [case for case in cases if section.steps % communication_cycle([case])]
    if not cut or not section.trials:
        return []
    whole, one = communication_cycle(cases), communication_cycle(cut[:1])
    below = section.steps // whole * whole
    nearest = f"{below} or {below + whole}" if below else f"{whole}"
    message = (
        f"{cut[0].label} communicates in cycles of {one} steps, so {section.steps} timed steps are not "
        f"representative of a long training; use {nearest}"
    )
    return [Problem(("measure", "steps"), message, section.steps)]


def _settling_cases(section: MeasureConfig, cases: Sequence[Case]) -> list[tuple[Case, int]]:
    """Cases that settle only after the timed window begins, and the step at which they do; the last first."""
    late = [(case, step) for case in cases if (step := _steady_from_step(case)) > section.warmup]
    return sorted(late, key=lambda each: -each[1]) if section.trials else []


def _steady_from_step(case: Case) -> int:
    return max(_strategy(case).steady_from_step, _loader_steps(case))


def _loader_steps(case: Case) -> int:
    return case.loader.settling_steps(case.batch.gradient_accumulation_steps)


def _settling_mistake(section: MeasureConfig, case: Case, since: int) -> Problem:
    if since == _loader_steps(case):
        ahead = (case.loader.workers or 0) * case.loader.prefetch_factor
        message = (
            f"the workers of {case.name} make {ahead} micro-batches ahead (loader.workers x "
            "prefetch_factor), so the first timed steps would not wait for any; use a warm-up of "
            f"{since} or more steps, or fewer of the two"
        )
        return Problem(("measure", "warmup"), message, section.warmup)
    message = (
        f"{case.label} changes its communication at step {since}, inside the timed window; use a "
        f"warm-up of {since} or more steps, or let it start at step {section.warmup} or earlier"
    )
    return Problem(("measure", "warmup"), message, section.warmup)
