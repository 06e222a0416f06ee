"""``check``: whether each case is the same training as its reference."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from distbench.core import registry
from distbench.core.bounds import Bound, Positive
from distbench.core.case import Batch, Case, OptimizerConfig, PluginChoice, PrecisionConfig
from distbench.core.columns import TableColumn, TableSpec
from distbench.core.grouping import group_pairs
from distbench.core.job import REFERENCE, JobKind, JobOptions, JobSpec, PlannedTrial
from distbench.core.lr_schedule import breakpoints
from distbench.core.machine import Machine
from distbench.core.units import format_count, format_duration
from distbench.jobs._recorded_trainings import STEP, TRAINING, training_tables
from distbench.jobs.equivalence.cost import ReducedWork, reduce_work, training_seconds
from distbench.plan.references import micro_batched_reference, torch_reference_case
from distbench.strategies.base import REFERENCE_STRATEGY, SHARDED_REFERENCE, Strategy

ADVICE = "advice"
"""Name of a remark of a reference that advises on a difference, once for all cases."""


@dataclass(frozen=True)
class CheckSection:
    """Check that each case trains like one process with the whole batch (``--check``)."""

    steps: Annotated[int, Bound(1, 10_000)] = 20
    """Steps that each case and its reference train."""
    sgd_lr: Positive = 0.1
    """Learning rate of the second training, with SGD: Adam hides gradients that are scaled wrongly."""
    # fewer give no information about a spread
    perturbed: Annotated[int, Bound(4, 1000)] = 8
    """Trainings of the reference with rounding-sized changes: their spread is the envelope."""
    false_alarm: Annotated[float, Bound(1e-6, 0.5)] = 0.001
    """Probability of a false alarm: a training that differs only by rounding is reported as different."""
    fp32: bool = True
    """Train a case in 16 bits also in fp32, where rounding to 16 bits does not hide an error of logic."""
    fp64: bool = True
    """Train each reference also in fp64, which anchors the scale, if the device has enough memory."""
    dropout: Literal["off", "refuse"] = "off"
    """off: check a model without its dropout, and say so in the verdict (ranks drop different elements than
    one process). refuse: do not check such a model."""
    work: Literal["auto", "full"] = "auto"
    """auto: if the check of a case is predicted to take longer than ``minutes``, it uses reduced work: the
    same strategy, options and batch, with shorter rows, fewer layers and fewer token ids."""
    minutes: Positive = 10.0
    """Maximum predicted minutes for the check of one case, with its references."""


CONFIRMATION = "confirmation"
"""Role of a second training of a case that differs from its reference."""


@dataclass(frozen=True)
class CheckOptions(JobOptions):
    """Options for the ranks of a check."""

    steps: int = 0
    arm: str = ""
    """Name of the optimizer that the case is trained with."""
    precision: str = ""
    """Dtype that a 16-bit case is also trained in; empty: its own."""
    perturbed: int | None = None
    """Of a reference: number of its perturbed trainings."""
    parts: list[int] | None = None
    """Of a reference: numbers of parts into which the cases split a global batch."""
    fp64: bool = True
    """Of a reference: True if it is also trained in fp64 if that fits."""
    dropout: str = "off"
    """Treatment of dropout: ``off`` or ``refuse``."""
    work: str = ""
    """Reduced work, in words; empty: full work."""
    asked: str = ""
    """On reduced work: id of the case of the suite that this training stands for; empty: none."""
    also: str = ""
    """On reduced work: id of the suite's own fp32 case, whose trainings also count for this case."""


@dataclass(frozen=True)
class EquivalenceJob(JobKind):
    """Check that each case is the same training as one process with the whole global batch."""

    name: ClassVar[str] = "check"
    folder: ClassVar[str] = "checks"
    section: ClassVar[type] = CheckSection
    options: ClassVar[type[JobOptions]] = CheckOptions
    tables: ClassVar[tuple[TableSpec, ...]] = (
        *training_tables("check"),
        TableSpec(
            "check_replicas",
            "One row per training whose ranks ended a step with different parameters.",
            (
                TRAINING,
                STEP,
                TableColumn("of_rank", "bigint", "First rank that differs from rank 0."),
                TableColumn("tensor", "varchar", "First parameter that differs."),
            ),
        ),
        TableSpec(
            "check_notes",
            "Remarks about the trial, one per row.",
            (TRAINING, TableColumn("text", "varchar", "The remark.")),
        ),
    )
    is_deterministic: ClassVar[bool] = True
    order: ClassVar[int] = 10
    missing_verdict_advice: ClassVar[str] = "Equivalence was not checked; run with --check."
    follow_up_text: ClassVar[str] = (
        "a case that differs from its reference is trained once more, from weights perturbed by rounding"
    )

    def planned_trials(
        self, section: CheckSection, cases: Sequence[Case], machine: Machine
    ) -> list[PlannedTrial]:
        """Plan the checks of *cases*: each reference is followed by the cases compared with it."""
        groups: dict[str, list[PlannedTrial]] = {}
        asked = {case.id for case in cases}
        for case in cases:
            arms = planned_trainings(case, section, asked)
            work = _reduced_work(case, section, arms, machine)
            again = as_fp32(case) if work else None
            for full in arms:
                armed = dataclasses.replace(full, workload=work.choice) if work else full
                reference = micro_batched_reference(armed)
                options = CheckOptions(
                    role="case",
                    of=case.id,
                    reference=reference.id,
                    steps=_steps(section, case),
                    dropout=section.dropout,
                    arm=armed.optimizer.name,
                    precision="" if armed.precision == case.precision else armed.precision.compute,
                    work=work.text if work else "",
                    asked=case.id if work and full == case else "",
                    also=again.id if again and again.id in asked else "",
                )
                if reference.id not in groups:
                    groups[reference.id] = [_reference_trial(section, reference, options, cases, machine)]
                # the suite's own training has been checked for problems already
                problem = _strategy(armed).problem(armed, machine.for_case(armed)) if full != case else None
                task = PlannedTrial(
                    armed, job=JobSpec("check", options), depends_on=reference.id, problem=problem
                )
                groups[reference.id].append(task)
        return [task for group in groups.values() for task in group]

    def predicted_seconds(self, task: PlannedTrial) -> float | None:
        options = task.job.options_as(CheckOptions)
        return training_seconds(task.case, options.steps, options.perturbed)

    def plan_note(self, tasks: Sequence[PlannedTrial]) -> str:
        seconds = [self.predicted_seconds(task) for task in tasks]
        known = [each for each in seconds if each is not None]
        sentences = (
            [f"predicted time: about {format_duration(sum(known))} ({_PREDICTION_BASIS})"] if known else []
        )
        if unknown := len(seconds) - len(known):
            sentences.append(f"{format_count(unknown, 'trial')} (cost unknown: no formulas for this model)")
        works = group_pairs(
            (options.work, task.case.label)
            for task in tasks
            if (options := task.job.options_as(CheckOptions)).work and options.role == "case"
        )
        sentences += [
            f"on reduced work ({work}): {', '.join(dict.fromkeys(of))}" for work, of in works.items()
        ]
        return "; ".join(sentences)


_PREDICTION_BASIS = "from the workload's formulas and the rates in docs/equivalence.md, not measured here"
MAX_SCHEDULE_STEPS = 200
"""Last breakpoint of a learning-rate schedule for which a check is extended."""
# an update in the new phase, a loss that shows it, and one more
_STEPS_AFTER_CORNER = 3


def planned_trainings(case: Case, check: CheckSection, asked: Container[str]) -> list[Case]:
    """Trainings of *case*: unchanged, with SGD, which hides no wrong scale, and both again in fp32.

    Not in fp32 if the suite has that case too (*asked* are the ids of its cases).
    """
    as_asked, again = _with_sgd(case, check), as_fp32(case) if check.fp32 else None
    return as_asked if again is None or again.id in asked else as_asked + _with_sgd(again, check)


def as_fp32(case: Case) -> Case | None:
    """Return the 16-bit *case* in fp32; None if its dtype is longer already."""
    if case.precision.compute not in ("bf16", "fp16"):
        return None
    name = case.name.replace(f"/{case.precision.label}", "/fp32")
    return dataclasses.replace(case, name=name, precision=PrecisionConfig())


def _with_sgd(case: Case, check: CheckSection) -> list[Case]:
    if case.optimizer.name == "sgd":
        return [case]
    # keep clipping and the schedule
    sgd = dataclasses.replace(
        case.optimizer,
        name="sgd",
        lr=check.sgd_lr,
        kernel="foreach",
        betas=OptimizerConfig.betas,
        momentum=OptimizerConfig.momentum,
        eps=OptimizerConfig.eps,
        weight_decay=OptimizerConfig.weight_decay,
    )
    return [case, dataclasses.replace(case, optimizer=sgd)]


def _reduced_work(
    case: Case, check: CheckSection, arms: Sequence[Case], machine: Machine
) -> ReducedWork | None:
    """Reduced work on which *case* is checked; None: full work."""
    if check.work == "full":
        return None
    return reduce_work(case, arms, machine, _steps(check, case), check.perturbed, check.minutes * 60)


def _steps(check: CheckSection, case: Case) -> int:
    """Steps to train: those requested, or enough to pass the breakpoints of a schedule within reach."""
    within = [corner for corner in breakpoints(case.optimizer) if corner <= MAX_SCHEDULE_STEPS]
    return max([check.steps, *(corner + _STEPS_AFTER_CORNER for corner in within)])


def _reference_trial(
    check: CheckSection, reference: Case, options: CheckOptions, cases: Sequence[Case], machine: Machine
) -> PlannedTrial:
    size = reference.batch.global_batch_size
    alike = [case for case in cases if case.batch.global_batch_size == size]
    if reference.depends_on_batch_division:
        alike = [
            case for case in alike if case.batch.total_micro_batches == reference.batch.total_micro_batches
        ]
    parts = sorted({case.batch.total_micro_batches for case in alike})
    own = dataclasses.replace(
        options, role=REFERENCE, perturbed=check.perturbed, parts=parts, fp64=check.fp64
    )
    # if it doesn't fit: with recomputed micro-batches, then also sharded over a few devices
    micro = min(case.batch.micro_batch_size for case in alike)
    smaller = [
        torch_reference_case(
            reference, PluginChoice(REFERENCE_STRATEGY), 1, Batch(size, micro, size // micro), recompute=True
        )
    ]
    for world_size in sorted({case.world_size for case in cases} - {1}):
        if size % world_size == 0:
            share = size // world_size
            part = math.gcd(share, micro)
            cut = Batch(size, part, share // part)
            if reference.depends_on_batch_division and part != micro:
                continue
            smaller.append(
                torch_reference_case(
                    reference, PluginChoice(SHARDED_REFERENCE), world_size, cut, recompute=True
                )
            )
    instead = (
        case for case in smaller if case.id != reference.id and not _strategy(case).problem(case, machine)
    )
    return PlannedTrial(reference, job=JobSpec("check", own), fallbacks=tuple(instead))


def _strategy(case: Case) -> Strategy:
    made: Strategy = registry.create_plugin("strategies", case.strategy)
    return made
