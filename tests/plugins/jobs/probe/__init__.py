"""``probe``: a kind of job that is a folder here and nothing anywhere else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from distbench.analysis.verdicts import Verdict
from distbench.core.bounds import Bound
from distbench.core.case import Case
from distbench.core.job import Job, Options
from distbench.jobs.base import Kind
from distbench.metrics.base import Column, TableColumn, TableSpec
from distbench.plan.tasks import Task
from distbench.record import Record
from distbench.system.machine import Machine


@dataclass(frozen=True)
class Section:
    """A few steps of each case."""

    steps: Annotated[int, Bound(1, 100)] = 2
    """Steps to take."""


@dataclass(frozen=True)
class ProbeOptions(Options):
    """What the ranks of a probe get."""

    steps: int = 0


@dataclass(frozen=True)
class Probe(Kind):
    """Trains each case for a few steps and counts them."""

    name: ClassVar[str] = "probe"
    folder: ClassVar[str] = "probes"
    section: ClassVar[type] = Section
    options: ClassVar[type[Options]] = ProbeOptions
    columns: ClassVar[tuple[Column, ...]] = (
        Column("probed_steps", "", "higher", "sum", "Steps taken by all ranks together."),
    )

    tables: ClassVar[tuple[TableSpec, ...]] = (
        TableSpec(
            "probe_curve",
            "One row a step and rank of a probe.",
            (
                TableColumn("step", "bigint", "Step, from 0 on."),
                TableColumn("loss", "double", "Mean loss of the rank."),
            ),
        ),
    )

    def tasks(self, section: Section, cases: Sequence[Case], machine: Machine) -> list[Task]:
        return [
            Task(case, job=Job(self.name, ProbeOptions(role="case", steps=section.steps))) for case in cases
        ]

    def judge(self, settings: Mapping[str, Any], records: Sequence[Record]) -> dict[str, Verdict]:
        """Whether every rank took each step."""
        verdicts = {}
        for record in records:
            taken, asked = record.values.get("probed_steps", 0), settings["steps"] * record.case.world_size
            word, gravity = ("complete", "ok") if taken == asked else ("short", "bad")
            sentence = f"{word}: {taken:g} of {asked} steps"
            verdicts[record.case_id] = Verdict("probe", word, gravity, sentence)
        return verdicts
