"""``tally``: a kind of job that is a folder here and nothing anywhere else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from distbench.core.bounds import Bound
from distbench.core.case import Case
from distbench.core.columns import Column, TableColumn, TableSpec
from distbench.core.job import JobKind, JobOptions, JobSpec, PlannedTrial
from distbench.core.machine import Machine


@dataclass(frozen=True)
class Section:
    """A few steps of each case."""

    steps: Annotated[int, Bound(1, 100)] = 2
    """Steps to take."""


@dataclass(frozen=True)
class TallyOptions(JobOptions):
    """What the ranks of a tally get."""

    steps: int = 0


@dataclass(frozen=True)
class Tally(JobKind):
    """Trains each case for a few steps and counts them."""

    name: ClassVar[str] = "tally"
    folder: ClassVar[str] = "tallies"
    section: ClassVar[type] = Section
    options: ClassVar[type[JobOptions]] = TallyOptions
    columns: ClassVar[tuple[Column, ...]] = (
        Column("tallied_steps", "", "higher", "sum", "Steps taken by all ranks together."),
    )

    tables: ClassVar[tuple[TableSpec, ...]] = (
        TableSpec(
            "tally_curve",
            "One row a step and rank of a tally.",
            (
                TableColumn("step", "bigint", "Step, from 0 on."),
                TableColumn("loss", "double", "Mean loss of the rank."),
            ),
        ),
    )

    def planned_trials(self, section: Section, cases: Sequence[Case], machine: Machine) -> list[PlannedTrial]:
        return [
            PlannedTrial(case, job=JobSpec(self.name, TallyOptions(role="case", steps=section.steps)))
            for case in cases
        ]
