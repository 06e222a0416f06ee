"""What is launched, in which order."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from distbench.case import Case
from distbench.job import MEASURE, Job
from distbench.spec import Suite


@dataclass(frozen=True)
class Task:
    """One trial to come."""

    case: Case
    round: int = 0
    job: Job = MEASURE
    instead: tuple[Case, ...] = ()
    """Cases to try in its place, one after another, if it runs out of memory."""
    needs: str = ""
    """Id of the case of an earlier task of the same job without whose result this one says nothing."""
    leaves: str = ""
    """File in the run's scratch folder that later tasks read; it ends with the run."""
    reads: str = ""
    """File in that folder that an earlier task of the same job leaves."""
    problem: str | None = None
    """Why it can't be launched here; its record says so."""

    @property
    def key(self) -> tuple[str, str, str, int]:
        """What tells it from every other task of a run; its record has the same."""
        return self.job.kind, self.case.name, self.case.id, self.round

    def candidates(self) -> Iterator[Task]:
        """Yield the task itself, then what may be launched in its place."""
        for case in (self.case, *self.instead):
            yield dataclasses.replace(self, case=case, instead=())


def measuring(suite: Suite, cases: Sequence[Case]) -> list[Task]:
    """Return the trials that measure *cases*."""
    rounds = range(suite.measure.trials)
    if suite.measure.order == "sequential":
        return [Task(case, i) for case in cases for i in rounds]
    # every second round reversed: a drift over the run weighs on all cases alike
    return [Task(case, i) for i in rounds for case in (cases if i % 2 == 0 else list(reversed(cases)))]
