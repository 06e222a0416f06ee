"""The trials to launch, and the reference trainings that cases are compared with."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from distbench.core import registry
from distbench.core.case import CURRENT, Batch, Case, Choice
from distbench.core.job import MEASURING, Job
from distbench.strategies.base import SINGLE


@dataclass(frozen=True)
class Task:
    """One trial to launch."""

    case: Case
    round: int = 0
    job: Job = MEASURING
    instead: tuple[Case, ...] = ()
    """Fallback cases, tried in order if it runs out of memory."""
    needs: str = ""
    """Case id of an earlier task of the same job whose result this one is compared with."""
    leaves: str = ""
    """File in the run's scratch folder that later tasks read; it ends with the run."""
    reads: str = ""
    """File in that folder that an earlier task of the same job leaves."""
    problem: str | None = None
    """Why it can't be launched here, for its record."""

    @property
    def key(self) -> tuple[str, str, str, int]:
        """Unique key within a run; its record has the same."""
        return self.job.kind, self.case.name, self.case.id, self.round

    def candidates(self) -> Iterator[Task]:
        """Yield the task itself, then its fallbacks."""
        for case in (self.case, *self.instead):
            yield dataclasses.replace(self, case=case, instead=())


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
