"""From a suite and a machine to cases and trials."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass

from distbench.case import Case
from distbench.env import Machine, core_count
from distbench.errors import SuiteError
from distbench.plan.cells import Cell, cells
from distbench.plan.checkpoints import saving
from distbench.plan.checks import Checks
from distbench.plan.convergence import converging, problems
from distbench.plan.equivalence import checking
from distbench.plan.naming import base_name, unique
from distbench.plan.tasks import Task, measuring
from distbench.spec import Suite
from distbench.spec.cells import located
from distbench.spec.checking import Finding
from distbench.spec.places import KeyPath, key_text
from distbench.spec.plugins import Plugins
from distbench.spec.suite import mistakes
from distbench.spec.work import Work, WorkChecker

MAX_TRIALS = 1_000_000


@dataclass(frozen=True)
class Planned:
    """A case of a run and, if it can't run here, why."""

    case: Case
    problem: str | None = None


@dataclass(frozen=True)
class Plan:
    """What a run of a suite does on a machine."""

    cases: list[Planned]
    trials: list[Task]
    """In the order of launch; cases with a problem have none."""


def make(suite: Suite, machine: Machine) -> Plan:
    """Return the cases and trials of *suite* on *machine*.

    Raises:
        SuiteError: what can't work, known before anything is launched; every mistake at once.
    """
    if suite.device == "cuda" and machine.devices == 0:
        message = "this machine shows no CUDA device; device: cpu, or auto to take what is there"
        raise SuiteError([suite.places.mistake(("device",), message, "cuda")])
    every = _Planner(suite, machine).cases()
    # all of them, also what can't run here or is left out today: the suite is right or wrong as a whole
    if suite.converge and (wrong := problems(suite.converge, [item.case for item in every])):
        raise SuiteError(mistakes(wrong, suite.places))
    planned = _only(suite, every)
    runnable = [item.case for item in planned if item.problem is None]
    if len(runnable) * suite.measure.trials > MAX_TRIALS:
        message = f"makes {len(runnable) * suite.measure.trials:,} trials, more than {MAX_TRIALS:,}"
        raise SuiteError([suite.places.mistake(("measure", "trials"), message, suite.measure.trials)])
    checks = checking(suite.check, runnable, machine) if suite.check else []
    checkpoints = saving(suite.checkpoint, runnable) if suite.checkpoint else []
    trainings = converging(suite.converge, runnable) if suite.converge else []
    return Plan(planned, [*checks, *checkpoints, *trainings, *measuring(suite, runnable)])


def _only(suite: Suite, planned: list[Planned]) -> list[Planned]:
    if not suite.only:
        return planned
    labels = sorted({item.case.label for item in planned})
    unmatched = [
        (i, glob)
        for i, glob in enumerate(suite.only)
        if not any(_matches(item.case, glob) for item in planned)
    ]
    if unmatched:
        message = f"matches no case; labels: {', '.join(labels)}"
        raise SuiteError([suite.places.mistake(("only", i), message, glob) for i, glob in unmatched])
    return [item for item in planned if any(_matches(item.case, glob) for glob in suite.only)]


def _matches(case: Case, glob: str) -> bool:
    return fnmatch.fnmatchcase(case.label, glob) or fnmatch.fnmatchcase(case.name, glob)


class _Planner:
    def __init__(self, suite: Suite, machine: Machine) -> None:
        self._suite = suite
        self._machine = machine
        self._checks = Checks(suite, machine)
        self._cells = cells(suite, machine.devices)
        self._threads = _auto_threads(machine, [cell.world_size for cell in self._cells])

    def cases(self) -> list[Planned]:
        """Return the cases, with the reason of those that can't run here.

        Raises:
            SuiteError: what can't work on any machine, or not with these world sizes.
        """
        made = self._made()
        if not made and not self._checks.findings:
            self._checks.findings.append(Finding((), "makes no case; exclude leaves nothing"))
        self._add_duplicates(made)
        if self._checks.findings:
            raise SuiteError(mistakes(self._checks.findings, self._suite.places))
        named = unique([case for _, case, _ in made])
        return [Planned(case, problem) for case, (_, _, problem) in zip(named, made, strict=True)]

    def _made(self) -> list[tuple[Cell, Case, str | None]]:
        checker = WorkChecker(Plugins())
        made = []
        last: tuple[object, Work | None] = (None, None)
        for cell in self._cells:
            # cells of the same work come one after another
            if last[0] is not cell.work:
                work, findings = checker.check(cell.work)
                self._checks.findings += [located(found, cell.origins) for found in findings]
                last = cell.work, work
            if last[1] is not None:
                made.append(self._case(cell, last[1]))
        return made

    def _case(self, cell: Cell, work: Work) -> tuple[Cell, Case, str | None]:
        self._checks.work(cell, work)
        self._checks.processes(cell)
        batch, problem = self._checks.batch(cell, work)
        threads = work.scalars.threads
        lr = work.batch.learning_rate(work.optimizer.lr, batch.global_batch_size)
        scaled = "" if lr == work.optimizer.lr else f"/scaled_lr={lr:.3g}"
        case = Case(
            name=base_name(cell, batch, work.precision) + scaled,
            label=cell.strategy.label,
            strategy=cell.strategy.plugin.choice,
            workload=work.workload.choice,
            data=work.data.choice,
            world_size=cell.world_size,
            device=self._machine.device,
            batch=batch,
            optimizer=dataclasses.replace(work.optimizer, lr=lr),
            precision=work.precision,
            activation_checkpointing=work.scalars.activation_checkpointing,
            threads=self._threads if threads == "auto" else threads,
            seed=work.scalars.seed,
        )
        strategy = cell.strategy.plugin.instance
        return cell, case, problem or self._checks.unsupported(case, strategy, work.workload)

    def _add_duplicates(self, made: Sequence[tuple[Cell, Case, str | None]]) -> None:
        first: dict[str, Cell] = {}
        for cell, case, _ in made:
            earlier = first.setdefault(case.id, cell)
            if earlier is not cell:
                here, there = _differing_places(cell, earlier)
                line = self._suite.places.at(there)[1]
                named = f"{key_text(there)}{f' (line {line})' if line else ''}"
                message = f"makes the same case as {named}; take one of them away"
                self._checks.findings.append(Finding(here, message, case.name))


def _auto_threads(machine: Machine, world_sizes: Sequence[int]) -> int:
    if machine.device == "cuda":
        return max(1, core_count() // max(1, machine.devices))
    return max(1, machine.devices // max(world_sizes, default=1))


def _differing_places(cell: Cell, other: Cell) -> tuple[KeyPath, KeyPath]:
    if cell.block != other.block:
        return cell.block or cell.strategy.origin, other.block or other.strategy.origin
    if cell.strategy.origin != other.strategy.origin:
        return cell.strategy.origin, other.strategy.origin
    path = next(path for path in cell.origins if cell.origins[path] != other.origins.get(path))
    return cell.origins[path], other.origins[path]
