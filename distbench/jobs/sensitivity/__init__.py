"""``sensitivity``: how far rounding leads a training whose timed losses are not those of the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from distbench.core.bounds import Bound
from distbench.core.case import Case
from distbench.core.columns import TableColumn, TableSpec
from distbench.core.job import JobKind, JobOptions, JobSpec, PlannedTrial
from distbench.core.machine import Machine
from distbench.core.measurement import MeasureConfig
from distbench.jobs._recorded_trainings import STEP, TRAINING


@dataclass(frozen=True)
class SensitivitySection:
    """Measure how much rounding changes a training, if a verdict depends on it."""

    trainings: Annotated[int, Bound(0, 100)] = 4
    """Trainings from weights perturbed by rounding, in one trial; 0: none."""


@dataclass(frozen=True)
class SensitivityOptions(JobOptions):
    """Options for the ranks of a sensitivity trial."""

    trainings: int = 0


@dataclass(frozen=True)
class SensitivityJob(JobKind):
    """Measure how far rounding leads a training whose timed losses differ from those of the others.

    Rounding usually makes trainings differ by less than ``losses.rounding_bounds`` allows; at a learning
    rate that is high for the model, by more. So before a case counts as different, the case that it is
    compared with is trained a few more times from perturbed weights, for as many steps as were timed. A gate
    does the same with its baseline.
    """

    name: ClassVar[str] = "sensitivity"
    folder: ClassVar[str] = "sensitivity"
    section: ClassVar[type] = SensitivitySection
    is_default: ClassVar[bool] = True
    options: ClassVar[type[JobOptions]] = SensitivityOptions
    tables: ClassVar[tuple[TableSpec, ...]] = (
        TableSpec(
            "sensitivity_curve",
            "One row per step and training from weights perturbed by rounding.",
            (TRAINING, STEP, TableColumn("loss", "double", "Loss before the update, over the global batch.")),
        ),
    )
    order: ClassVar[int] = 90
    follow_up_text: ClassVar[str] = (
        "if timed losses diverge, one more trial of each case that they are compared with shows how much "
        "rounding alone can do: {trainings} trainings from weights perturbed by rounding"
    )

    def planned_trials(
        self, section: SensitivitySection, cases: Sequence[Case], machine: Machine
    ) -> list[PlannedTrial]:
        return []

    def perturbed_trials(self, section: SensitivitySection, cases: Sequence[Case]) -> list[PlannedTrial]:
        job = JobSpec(self.name, SensitivityOptions(trainings=section.trainings))
        return [PlannedTrial(case, job=job) for case in cases if section.trainings]

    def sequential_steps(self, task: PlannedTrial, measure: MeasureConfig) -> int:
        trainings = task.job.options_as(SensitivityOptions).trainings
        return trainings * (measure.warmup + measure.steps)

    def is_empty(self, section: Any) -> bool:
        return True
