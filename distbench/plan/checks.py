"""Checks before launch: mistakes in the suite, and cases that this machine can't run."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from distbench.core import meshes, registry
from distbench.core.case import Batch, Case, PluginChoice
from distbench.core.errors import as_yaml
from distbench.core.machine import Machine
from distbench.core.suite_mistakes import Problem
from distbench.plan.cells import SuiteCell
from distbench.plan.environments import data_difference
from distbench.plan.requirements import missing_requirement
from distbench.strategies.base import Strategy
from distbench.suite import Suite
from distbench.suite.batch import BatchConfig, IndivisibleBatchError
from distbench.suite.plugin_options import CheckedPlugin
from distbench.suite.sections import to_json_dict
from distbench.suite.work import CheckedWork

T = TypeVar("T")
_MAX_SUGGESTIONS = 2
"""Maximum number of suggested alternatives."""
_MAX_DISTANCE = 32
"""Maximum distance of world sizes that are tried."""


class PlanChecker:
    """Collects the mistakes in a suite over all its cells; asks each plug-in once per choice."""

    def __init__(self, suite: Suite, machine: Machine) -> None:
        self.problems: list[Problem] = []
        self._suite = suite
        self._machine = machine
        self._seen: set[object] = set()
        self._wrong: set[CheckedPlugin] = set()
        """Workloads with a mistake, which can't be checked any further."""
        self._launcher = registry.create_plugin("launchers", suite.launcher)

    def check_work(self, cell: SuiteCell, work: CheckedWork) -> None:
        """Check that the shapes are valid and that the data fits them."""
        workload, data = work.workload, work.data
        if self._is_new(workload) and (problem := workload.instance.problem()):
            self._wrong.add(workload)
            self._add_plugin_problem(cell, problem, workload=workload)
        if not self._is_new(workload, data) or workload in self._wrong:
            return
        shape = workload.instance.shape
        if shape is not None:
            self._add_plugin_problem(cell, data.instance.problem(shape), data=data, workload=workload)

    def check_processes(self, cell: SuiteCell) -> None:
        """Check that the launcher can start the processes."""
        processes = cell.strategy.plugin.instance.processes(cell.world_size)
        if not self._is_new("processes", processes, cell.world_size, cell.include):
            return
        problem = self._launcher.problem(processes, self._machine)
        if problem:
            self.problems.append(Problem(self._world_size_path(cell), problem, cell.world_size))

    def divide_batch(
        self, cell: SuiteCell, work: CheckedWork, divided: Collection[int]
    ) -> tuple[Batch, str | None]:
        """Return the batch of *cell*, and the reason if only this case can't run with it.

        *divided* are the world sizes at which another strategy can divide it.
        """
        try:
            return work.batch.divide(cell.world_size, cell.data_ranks), None
        except IndivisibleBatchError as error:
            problem = error
        # the machine chose this world size, or the mesh: not a mistake, but not a case either
        is_chosen = cell.is_optional or (not cell.has_explicit_sizes and is_divisible(work, 1))
        if is_chosen or cell.world_size in divided or _mesh_prevents_division(cell, work):
            return work.batch.undivided(cell.world_size), problem.reason
        place = cell.source_of(("batch", problem.field))
        self.problems.append(Problem(place, str(problem), problem.size))
        return work.batch.undivided(cell.world_size), None

    def unsupported_reason(self, cell: SuiteCell, case: Case, work: CheckedWork) -> str | None:
        """Reason why *case* of *cell* can't run on this machine and what would fit; None if it can run.

        Also None if its workload has a mistake, which ends the plan.
        """
        if work.workload in self._wrong:
            return None
        strategy: Strategy = cell.strategy.plugin.instance

        def problem_of(case: Case, strategy: Strategy) -> str | None:
            found = self._machine.for_case(case)
            other = data_difference(work.data.instance, found, self._machine)
            return other or missing_requirement(case, strategy, work.workload.instance, found)

        problem = problem_of(case, strategy)
        near = strategy.nearest_meshes(case) if problem and not cell.is_optional else None
        if problem is None or not near:
            return problem
        instead = MeshAlternatives(case, strategy, work.batch, problem, problem_of).suggest(near)
        return f"{problem}; {instead}" if instead else problem

    def _is_new(self, *what: object) -> bool:
        # plug-ins are compared by identity: the same object means the same choice
        if what in self._seen:
            return False
        self._seen.add(what)
        return True

    def _add_plugin_problem(self, cell: SuiteCell, problem: str | None, **plugins: CheckedPlugin) -> None:
        """Place each mistake in *problem* at the first option that it names, otherwise at the plug-in."""
        options = [option for plugin in plugins.values() for option in plugin.choice.options]
        self.problems += [
            self._place_problem(cell, each, plugins) for each in _split_mistakes(problem, options)
        ]

    def _place_problem(self, cell: SuiteCell, problem: str, plugins: Mapping[str, CheckedPlugin]) -> Problem:
        for is_given in (True, False):
            for root, plugin in plugins.items():
                name, options = plugin.choice.name, plugin.choice.options
                given = cell.work.get(root, {}).get(name) or {}
                key = _first_named_option(given if is_given else options, problem)
                if key:
                    prefix = f"{key} = {as_yaml(options[key])}"
                    message = problem.removeprefix(prefix).lstrip(": ")
                    return Problem(cell.source_of((root, name, key)), message, options[key])
        root = next(root for root in [*plugins, "workload"] if root in cell.work)
        return Problem(cell.source_of((root,)), problem, plugins[root].choice.name)

    def _world_size_path(self, cell: SuiteCell) -> tuple[str | int, ...]:
        if cell.include:
            return (*cell.include, "world_size")
        given = self._suite.world_sizes or ()
        return ("world_sizes", *([given.index(cell.world_size)] if cell.world_size in given else []))


def _split_mistakes(problem: str | None, options: Sequence[str]) -> list[str]:
    """Split *problem* into mistakes, each of which begins with an option's name."""
    if not problem or not options:
        return [problem] if problem else []
    return re.split(rf"; (?=(?:{'|'.join(options)})(?: =|:| is) )", problem)


def _first_named_option(options: Iterable[str], message: str) -> str | None:
    places = {key: match.start() for key in options if (match := re.search(rf"\b{key}\b", message))}
    return min(places, key=lambda key: places[key], default=None)


def _mesh_prevents_division(cell: SuiteCell, work: CheckedWork) -> bool:
    """True if the batch of *cell* could be divided at its world size, but not in its mesh."""
    ranks = cell.world_size
    sizes = [size for size in range(1, ranks + 1) if ranks % size == 0]
    has_mesh = bool(cell.strategy.plugin.choice.options.get("mesh"))
    return has_mesh and any(is_divisible(work, ranks, size) for size in sizes)


def is_divisible(work: CheckedWork, world_size: int, data_ranks: int | None = None) -> bool:
    """True if the batch of *work* can be divided at *world_size*."""
    try:
        work.batch.divide(world_size, data_ranks)
    except IndivisibleBatchError:
        return False
    return True


@dataclass(frozen=True)
class MeshAlternatives:
    """Alternatives for a case whose mesh does not fit."""

    case: Case
    strategy: Strategy
    batch: BatchConfig
    problem: str
    """Reason why the case can't run."""
    find_problem: Callable[[Case, Strategy], str | None]
    """Returns the reason why another case can't run."""

    def suggest(self, near: Sequence[Mapping[str, int]]) -> str:
        """Describe which of the meshes *near* fit the whole case, or else which world sizes would.

        Empty: the mesh is not the problem.
        """
        if fitting := _take(mesh for mesh in near if not self._problem_with(mesh)):
            # one with more dimensions is no better than one with fewer
            alike = [mesh for mesh in fitting if len(mesh) == len(fitting[0])]
            return f"mesh: {' or '.join(map(meshes.mesh_text, alike))} would fit"
        ranks = self.case.world_size
        if sizes := _take(size for size in _nearby_sizes(ranks) if not self._problem_with(None, size)):
            return f"no mesh of {ranks} ranks would fit, but world size {' or '.join(map(str, sizes))} would"
        nearest = next(
            (mesh for mesh in near if self._with_mesh(mesh).nearest_meshes(self.case) is None), near[0]
        )
        why = self._problem_with(nearest)
        return (
            ""
            if why == self.problem
            else f"no other mesh would fit; mesh: {meshes.mesh_text(nearest)}: {why}"
        )

    def _with_mesh(self, mesh: Mapping[str, int] | None) -> Strategy:
        """The strategy in *mesh*; None: its own mesh."""
        changes: dict[str, Any] = {} if mesh is None else {"mesh": dict(mesh)}
        strategy: Any = self.strategy
        other: Strategy = replace(strategy, **changes)
        return other

    def _problem_with(self, mesh: Mapping[str, int] | None, ranks: int | None = None) -> str | None:
        """Reason why the case can't run in *mesh* (None: its own), or on *ranks*; None if it can."""
        other, ranks = self._with_mesh(mesh), ranks or self.case.world_size
        try:
            batch = self.batch.divide(ranks, other.data_parallel_size(ranks))
        except IndivisibleBatchError as error:
            return error.reason
        choice = PluginChoice(self.case.strategy.name, to_json_dict(other))
        case = replace(self.case, strategy=choice, label=other.label, world_size=ranks, batch=batch)
        return self.find_problem(case, other)


def _take(fitting: Iterator[T]) -> list[T]:
    return list(itertools.islice(fitting, _MAX_SUGGESTIONS))


def _nearby_sizes(ranks: int) -> list[int]:
    """List world sizes around *ranks*, nearest first."""
    return sorted(
        range(max(1, ranks - _MAX_DISTANCE), ranks + _MAX_DISTANCE), key=lambda size: abs(size - ranks)
    )
