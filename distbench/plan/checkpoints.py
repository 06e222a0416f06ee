"""The trials that try the checkpoints of each case: its own, and those of others."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from distbench.case import Case
from distbench.job import Checkpoint, Job
from distbench.plan.tasks import Task

REFERENCE = "single"
"""Strategy that checkpoints are exchanged with; where a comparison has none, its first case."""


def saving(checkpoint: Checkpoint, cases: Sequence[Case]) -> list[Task]:
    """Return the tasks that try the checkpoints of *cases*.

    Each case saves, goes on, and goes on again from what it saved; it also goes on from what the
    reference of its comparison left, and the reference from what it left: a star, so that the number
    of trials grows with the cases and not with their square, and a fault has one name.
    """
    groups: dict[str, list[Case]] = {}
    for case in cases:
        groups.setdefault(_work(case), []).append(case)
    return [task for group in groups.values() for task in _star(checkpoint, group)]


def _star(checkpoint: Checkpoint, cases: Sequence[Case]) -> list[Task]:
    reference = next((case for case in cases if case.strategy.name == REFERENCE), cases[0])
    others = [case for case in cases if case is not reference]
    steps = dataclasses.asdict(checkpoint)
    first = Task(reference, job=Job("checkpoint", {**steps, "role": "case"}), leaves=_file(reference))
    given = {**steps, "role": "case", "source": reference.name, "source_id": reference.id}
    tasks = [
        Task(case, job=Job("checkpoint", given), leaves=_file(case), reads=_file(reference))
        for case in others
    ]
    back = [
        Task(
            reference,
            round=number,
            job=Job("checkpoint", {**steps, "role": "back", "source": case.name, "source_id": case.id}),
            reads=_file(case),
        )
        for number, case in enumerate(others, 1)
    ]
    return [first, *tasks, *back]


def _file(case: Case) -> str:
    return f"full-{case.id}.safetensors"


def _work(case: Case) -> str:
    """Return what must be the same for two cases to go on from each other's state as the same training."""
    parts = [case.workload, case.data, case.optimizer, case.precision, case.seed]
    return json.dumps([parts, case.batch.global_batch_size], default=vars, sort_keys=True)
