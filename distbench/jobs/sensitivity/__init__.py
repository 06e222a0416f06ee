"""``sensitivity``: how far rounding leads a training whose timed losses are not those of the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from distbench.core.bounds import Bound
from distbench.core.case import Case, Measure
from distbench.core.grouping import gathered
from distbench.core.job import Job, Options
from distbench.jobs.base import STEP, TRAINING, Kind
from distbench.metrics.base import TableColumn, TableSpec
from distbench.plan.tasks import Task
from distbench.system.machine import Machine

if TYPE_CHECKING:
    import numpy as np

    from distbench.record import Record


@dataclass(frozen=True)
class Sensitivity:
    """How far rounding leads a training, where that decides whether another one is the same."""

    trainings: Annotated[int, Bound(0, 100)] = 4
    """Trainings from weights moved by rounding, in one trial; 0: none."""


@dataclass(frozen=True)
class SensitivityOptions(Options):
    """What the ranks of such a trial get."""

    trainings: int = 0


@dataclass(frozen=True)
class Sensitive(Kind):
    """How far rounding leads a training whose timed losses are not those of the others.

    Rounding usually leads trainings less far apart than ``analysis.tolerance`` allows. At a learning rate
    that is high for the model it leads further. So before a case is called another training, the one that it
    is held against is trained a few times more, as long as it was timed, from weights moved by rounding. A
    gate does so with its baseline.
    """

    name: ClassVar[str] = "sensitivity"
    folder: ClassVar[str] = "sensitivity"
    section: ClassVar[type] = Sensitivity
    always: ClassVar[bool] = True
    options: ClassVar[type[Options]] = SensitivityOptions
    tables: ClassVar[tuple[TableSpec, ...]] = (
        TableSpec(
            "sensitivity_curve",
            "One row per training from weights moved by rounding, and step.",
            (TRAINING, STEP, TableColumn("loss", "double", "Loss before the update, over the global batch.")),
        ),
    )
    order: ClassVar[int] = 90
    later: ClassVar[str] = (
        "if timed losses part further than rounding usually leads, one more trial of each case that they are "
        "held against: {trainings} trainings from weights moved by rounding"
    )

    def tasks(self, section: Sensitivity, cases: Sequence[Case], machine: Machine) -> list[Task]:
        return []

    def moving(self, section: Sensitivity, cases: Sequence[Case]) -> list[Task]:
        job = Job(self.name, SensitivityOptions(trainings=section.trainings))
        return [Task(case, job=job) for case in cases if section.trainings]

    def follow_up(self, section: Sensitivity, cases: Sequence[Case], records: Sequence[Record]) -> list[Task]:
        """Trials of those *cases* that others are called another training for, by what is usual."""
        from distbench.analysis.verdicts import judged_losses

        doubted = {found.reference for found in judged_losses(records).values() if found.is_other}
        return self.moving(section, [case for case in cases if case.id in doubted])

    def moved_losses(self, records: Sequence[Record]) -> dict[str, Sequence[np.ndarray]]:
        import numpy as np

        from distbench.record import Status

        return {
            record.case_id: [np.array(losses, dtype=np.float64) for losses in curves.values()]
            for record in records
            if record.status is Status.MEASURED
            and (
                curves := gathered(
                    (row["training"], row["loss"])
                    for row in sorted(record.tables.get("sensitivity_curve", []), key=lambda row: row["step"])
                )
            )
        }

    def steps(self, task: Task, measure: Measure) -> int:
        trainings = task.job.options_as(SensitivityOptions).trainings
        return trainings * (measure.warmup + measure.steps)

    def is_idle(self, section: Any) -> bool:
        return True
