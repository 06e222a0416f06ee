"""The reference trainings that cases are compared with."""

from __future__ import annotations

import dataclasses

from distbench.core import registry
from distbench.core.case import CURRENT, Batch, Case, Choice
from distbench.strategies.base import SINGLE


def reference_of(case: Case) -> Case:
    """Reference of *case*: one process with the whole global batch."""
    size = case.batch.global_batch_size
    return trusted(case, Choice(SINGLE), 1, Batch(size, size, 1))


def reference_in_parts(case: Case) -> Case:
    """Reference of *case* that computes a global batch in the same parts, where these matter."""
    if not case.parts_matter:
        return reference_of(case)
    batch = dataclasses.replace(case.batch, gradient_accumulation_steps=case.batch.parts)
    return trusted(case, Choice(SINGLE), 1, batch)


def trusted(like: Case, strategy: Choice, world_size: int, batch: Batch, *, recomputes: bool = False) -> Case:
    """The training of *like* with *strategy*, one of torch's own, and its batch divided as *batch*.

    *recomputes*: activations are computed again in the backward pass, which takes less memory.
    """
    case = dataclasses.replace(
        like,
        strategy=strategy,
        world_size=world_size,
        batch=batch,
        activation_checkpointing="full" if recomputes else "none",
        compile="none",
        environment=CURRENT,
    )
    label: str = registry.make("strategies", strategy).label
    name = f"reference/{label}/ws{world_size}/mb{batch.micro_batch_size}/{like.precision.label}"
    return dataclasses.replace(case, label=label, name=f"{name}/{like.optimizer.name}")
