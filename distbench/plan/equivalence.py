"""The trials that check whether each case is the same training as its reference."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from distbench import registry
from distbench.case import Batch, Case, Choice, Optimizer
from distbench.env import Machine
from distbench.job import Check, Job
from distbench.plan.tasks import Task
from distbench.strategies.base import Strategy

SGD = "sgd"
"""The arm beside that of the suite's own optimizer."""


def checking(check: Check, cases: Sequence[Case], machine: Machine) -> list[Task]:
    """Return the tasks that check *cases*: each reference, then the cases that are held against it."""
    groups: dict[str, list[Task]] = {}
    for case in cases:
        for arm, armed in arms(case, check):
            reference = reference_of(armed)
            asked = {"steps": check.steps, "arm": arm, "of": case.id, "reference": reference.id}
            if reference.id not in groups:
                groups[reference.id] = [_reference(check, reference, asked, cases, machine)]
            problem = None if arm != SGD else _strategy(armed).problem(armed, machine)
            job = Job("check", {**asked, "role": "case"})
            groups[reference.id].append(Task(armed, job=job, needs=reference.id, problem=problem))
    return [task for group in groups.values() for task in group]


def arms(case: Case, check: Check) -> list[tuple[str, Case]]:
    """Return what *case* is trained as: with its own optimizer, and with SGD.

    Adam forgives gradients that are all scaled by the same wrong factor; SGD does not.
    """
    own = case.optimizer.name
    if own == SGD:
        return [(own, case)]
    sgd = Optimizer(
        name="sgd", lr=check.sgd_lr, clip_grad_norm=case.optimizer.clip_grad_norm, kernel="foreach"
    )
    return [(own, case), (SGD, dataclasses.replace(case, optimizer=sgd))]


def reference_of(case: Case) -> Case:
    """Return the training that *case* must be the same as: one process with the whole global batch."""
    size = case.batch.global_batch_size
    return _trusted(case, Choice("single"), 1, Batch(size, size, 1))


def reference_told(job: Job) -> str | None:
    """Return the id of the reference whose training *job* is; None: it is no reference's."""
    return str(job.options["reference"]) if job.options.get("role") == "reference" else None


def _reference(
    check: Check, reference: Case, asked: dict[str, object], cases: Sequence[Case], machine: Machine
) -> Task:
    alike = [case for case in cases if case.batch.global_batch_size == reference.batch.global_batch_size]
    parts = sorted({case.world_size * case.batch.gradient_accumulation_steps for case in alike})
    asked = {**asked, "role": "reference", "perturbed": check.perturbed, "parts": parts}
    job = Job("check", asked)
    possible = [case for case in _smaller(reference, cases) if not _strategy(case).problem(case, machine)]
    return Task(reference, job=job, instead=tuple(possible))


def _smaller(reference: Case, cases: Sequence[Case]) -> list[Case]:
    """Return what stands in for a reference that doesn't fit: in parts, then sharded over few devices."""
    size = reference.batch.global_batch_size
    alike = [case.batch for case in cases if case.batch.global_batch_size == size]
    micro = min(batch.micro_batch_size for batch in alike)
    found = [_trusted(reference, Choice("single"), 1, Batch(size, micro, size // micro))]
    for world_size in sorted({case.world_size for case in cases} - {1}):
        if size % world_size == 0:
            share = size // world_size
            part = math.gcd(share, micro)
            cut = Batch(size, part, share // part)
            found.append(_trusted(reference, Choice("fsdp"), world_size, cut))
    return [case for case in found if case.id != reference.id]


def _trusted(like: Case, strategy: Choice, world_size: int, batch: Batch) -> Case:
    case = dataclasses.replace(
        like, strategy=strategy, world_size=world_size, batch=batch, activation_checkpointing="none"
    )
    label = _strategy(case).label
    name = f"reference/{label}/ws{world_size}/mb{batch.micro_batch_size}/{like.precision.compute}"
    return dataclasses.replace(case, label=label, name=f"{name}/{like.optimizer.name}")


def _strategy(case: Case) -> Strategy:
    made: Strategy = registry.make("strategies", case.strategy)
    return made
