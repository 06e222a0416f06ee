"""``converge``: training of each case to a target on held-out data."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from distbench.core import registry
from distbench.core.bounds import Bound
from distbench.core.case import Case
from distbench.core.columns import TableColumn, TableSpec
from distbench.core.errors import did_you_mean
from distbench.core.job import REFERENCE, JobKind, JobOptions, JobSpec, PlannedTrial
from distbench.core.machine import Machine
from distbench.core.measurement import MeasureConfig
from distbench.core.suite_mistakes import Problem
from distbench.data.base import DataSource, HeldOutMetric
from distbench.plan.references import reference_case
from distbench.workloads.base import Workload

REFERENCE_SEED_FACTOR = 2
"""Trainings of the reference per training of a case (MLPerf's training rules require 2N)."""


@dataclass(frozen=True)
class ConvergeSection:
    """Training each case to a target on held-out data, several times, next to its reference.

    Every training runs to ``max_steps``, whenever it reaches the target, so that the values at
    the end can be compared too. The case is trained with the first ``seeds`` seeds from its own on,
    its reference (``single`` with the same global batch) with twice as many.
    """

    targets: dict[str, float]
    """Figure of merit (bits_per_byte, accuracy, ...) -> the value to reach: one for each data source."""
    max_steps: Annotated[int, Bound(1, 10_000_000)] = 200
    """Optimizer steps of each training."""
    eval_every: Annotated[int, Bound(1, 1_000_000)] = 20
    """Steps between evaluations on the held-out data; the last step is evaluated too."""
    eval_samples: Annotated[int, Bound(1, 1_000_000)] = 256
    """Held-out samples of each evaluation, the same in all of them; fewer if there are fewer."""
    seeds: Annotated[int, Bound(1, 1000)] = 3
    """Trainings of each case; the reference gets twice as many."""
    max_slowdown: Annotated[float, Bound(0, open_low=True)] = 0.2
    """Largest slowdown in steps to the target, as a fraction, that may remain possible (95% confidence) for a
    case to count as converging like its reference; otherwise the verdict is inconclusive."""
    max_worse: Annotated[float, Bound(0, open_low=True)] = 0.02
    """Largest fraction by which the value at the end may be worse than the reference's, likewise."""
    gradients_every: Annotated[int, Bound(0, 1_000_000)] = 20
    """Steps between checks of the gradient of each tensor; 0: never."""
    replicas_every: Annotated[int, Bound(0, 1_000_000)] = 50
    """Steps between comparisons of the parameters across ranks; 0: never."""


_STEP = TableColumn("step", "bigint", "Step of the training, from 1 on.")


@dataclass(frozen=True)
class ConvergeOptions(ConvergeSection, JobOptions):
    """Options for the ranks of a training to a target."""

    targets: dict[str, float] = field(default_factory=dict)
    merit: dict[str, Any] = field(default_factory=dict)
    """Figure of merit on the held-out data (``data.base.HeldOutMetric``)."""
    target: float | None = None
    problem: str = ""
    """Reason why nothing can be judged."""


@dataclass(frozen=True)
class ConvergenceJob(JobKind):
    """Training of each case to a target on held-out data, next to the same training on one process."""

    name: ClassVar[str] = "converge"
    folder: ClassVar[str] = "convergence"
    section: ClassVar[type] = ConvergeSection
    options: ClassVar[type[JobOptions]] = ConvergeOptions
    tables: ClassVar[tuple[TableSpec, ...]] = (
        TableSpec(
            "converge_curve",
            "One row per step.",
            (
                _STEP,
                TableColumn("samples", "bigint", "Samples trained up to the end of the step.", "samples"),
                TableColumn("tokens", "bigint", "Tokens trained up to the end of the step.", "tokens"),
                TableColumn(
                    "seconds",
                    "double",
                    "Seconds of training without evaluation, up to the end of the step.",
                    "s",
                ),
                TableColumn("loss", "double", "Loss before the update, over the global batch."),
                TableColumn("value", "double", "Figure of merit on held-out data; null: not evaluated."),
                TableColumn("grad_norm", "double", "Norm of the whole gradient; null: not measured."),
            ),
        ),
        TableSpec(
            "converge_findings",
            "One row per problem found in the training.",
            (
                _STEP,
                TableColumn("module", "varchar", "Module or parameter; empty: the whole model."),
                TableColumn("kind", "varchar", "Kind of problem."),
                TableColumn("text", "varchar", "What was found."),
            ),
        ),
    )
    order: ClassVar[int] = 30

    def planned_trials(
        self, section: ConvergeSection, cases: Sequence[Case], machine: Machine
    ) -> list[PlannedTrial]:
        """Plan trainings of *cases* and their references: all with the first seed, then with the second."""
        jobs: dict[str, tuple[Case, ConvergeOptions, int]] = {}
        for case in cases:
            reference = _with_unique_name(reference_case(case))
            merit = figure_of_merit(case)
            own = ConvergeOptions(**dataclasses.asdict(section), of=case.id)
            if why := _evaluation_problem(case, merit):
                jobs[case.id] = case, dataclasses.replace(own, problem=why), 1
                continue
            assert merit is not None, "else there is a reason"
            own = dataclasses.replace(
                own,
                role="case",
                reference=reference.id,
                merit=dataclasses.asdict(merit),
                target=section.targets[merit.name],
            )
            theirs = dataclasses.replace(own, role=REFERENCE, of=reference.id)
            jobs.setdefault(reference.id, (reference, theirs, REFERENCE_SEED_FACTOR * section.seeds))
            jobs[case.id] = case, own, section.seeds
        return [
            # with different weights and batches each time
            PlannedTrial(
                dataclasses.replace(case, seed=case.seed + i),
                i,
                JobSpec("converge", options),
                problem=options.problem or None,
            )
            for i in range(REFERENCE_SEED_FACTOR * section.seeds)
            for case, options, runs in jobs.values()
            if i < runs
        ]

    def sequential_steps(self, task: PlannedTrial, measure: MeasureConfig) -> int:
        """Steps of the training, plus for each evaluation as many as train on the same number of samples."""
        options = task.job.options_as(ConvergeOptions)
        evaluations = math.ceil(options.max_steps / options.eval_every)
        each = math.ceil(options.eval_samples / task.case.batch.global_batch_size)
        return options.max_steps + evaluations * each

    def problems(self, section: ConvergeSection, cases: Sequence[Case]) -> list[Problem]:
        """Report targets that are missing, and targets that no case uses."""
        judged: dict[str, Case] = {}
        for case in cases:
            if merit := figure_of_merit(case):
                judged.setdefault(merit.name, case)
        targets = ("converge", "targets")
        missing = [
            Problem(targets, f"missing {name}, the figure of merit of data {case.data.name}")
            for name, case in judged.items()
            if name not in section.targets
        ]
        return missing + [
            Problem((*targets, name), f"not used by any case; {did_you_mean(name, judged)}", value)
            for name, value in section.targets.items()
            if name not in judged
        ]


def figure_of_merit(case: Case) -> HeldOutMetric | None:
    """Figure of merit of the held-out data of *case*; None: nothing is held out."""
    source: DataSource = registry.create_plugin("data", case.data)
    workload: Workload = registry.create_plugin("workloads", case.workload)
    return source.held_out_metric(workload.shape)


def _evaluation_problem(case: Case, merit: HeldOutMetric | None) -> str | None:
    """Reason why a training of *case* can't be evaluated; None if it can."""
    if merit is None:
        return f"data {case.data.name} has no held-out rows, so a training on it can't be evaluated"
    source: DataSource = registry.create_plugin("data", case.data)
    workload: Workload = registry.create_plugin("workloads", case.workload)
    problem = source.split_problem(workload.shape)
    return problem and f"data {case.data.name}: {problem}"


def _with_unique_name(reference: Case) -> Case:
    # a suite may train several models, whose references need different names
    work = f"{reference.workload.name}/{reference.data.name}/gbs{reference.batch.global_batch_size}"
    return dataclasses.replace(reference, name=f"reference/{work}/{reference.precision.compute}")
