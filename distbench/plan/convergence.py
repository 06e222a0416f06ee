"""The trials that train each case to a target, and its reference beside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from distbench import registry
from distbench.case import Case
from distbench.data.base import Merit, Source
from distbench.errors import did_you_mean
from distbench.job import Converge, Job
from distbench.plan.equivalence import reference_of
from distbench.plan.tasks import Task
from distbench.spec.checking import Finding
from distbench.workloads.base import Workload

REFERENCE_RUNS = 2
"""Trainings of the reference for each of a case (MLPerf's training rules ask for 2N)."""


def converging(asked: Converge, cases: Sequence[Case]) -> list[Task]:
    """Return the tasks that train *cases* and their references: the first seed of all, then the second."""
    jobs: dict[str, tuple[Case, Job, int]] = {}
    for case in cases:
        reference = _named(reference_of(case))
        merit = merit_of(case)
        if merit is None:
            problem = f"data {case.data.name} holds nothing out, so no training on it can be judged"
            jobs[case.id] = case, Job("converge", {"of": case.id, "problem": problem}), 1
            continue
        told = {**dataclasses.asdict(asked), "merit": dataclasses.asdict(merit)}
        told |= {"target": asked.targets[merit.name], "reference": reference.id}
        job = Job("converge", {**told, "of": reference.id, "role": "reference"})
        jobs.setdefault(reference.id, (reference, job, REFERENCE_RUNS * asked.seeds))
        jobs[case.id] = case, Job("converge", {**told, "of": case.id, "role": "case"}), asked.seeds
    return [
        Task(_seeded(case, i), i, job, problem=job.options.get("problem"))
        for i in range(REFERENCE_RUNS * asked.seeds)
        for case, job, runs in jobs.values()
        if i < runs
    ]


def problems(asked: Converge, cases: Sequence[Case]) -> list[Finding]:
    """Return the targets that are missing, and those that no case is judged by."""
    judged: dict[str, Case] = {}
    for case in cases:
        if merit := merit_of(case):
            judged.setdefault(merit.name, case)
    found = [
        Finding(("converge", "targets"), f"has no {name}, by which data {case.data.name} is judged")
        for name, case in judged.items()
        if name not in asked.targets
    ]
    unknown = [name for name in asked.targets if name not in judged]
    return found + [
        Finding(("converge", "targets", name), f"judges no case; {did_you_mean(name, judged)}", value)
        for name, value in asked.targets.items()
        if name in unknown
    ]


def merit_of(case: Case) -> Merit | None:
    """Return by what the held-out data of *case* are judged; None: nothing is held out."""
    source: Source = registry.make("data", case.data)
    workload: Workload = registry.make("workloads", case.workload)
    return source.merit(workload.shape)


def _seeded(case: Case, number: int) -> Case:
    """Return training *number* of *case*: another draw of weights and batches."""
    return dataclasses.replace(case, seed=case.seed + number)


def _named(reference: Case) -> Case:
    # one suite may train several models; their references must be told apart
    size = reference.batch.global_batch_size
    name = (
        f"reference/{reference.workload.name}/{reference.data.name}/gbs{size}/{reference.precision.compute}"
    )
    return dataclasses.replace(reference, name=name)
