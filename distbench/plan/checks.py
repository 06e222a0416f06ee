"""What can be known before launch: mistakes of the suite, and cases that this machine can't run."""

from __future__ import annotations

from collections.abc import Iterable

from distbench import registry
from distbench.case import Batch, Case
from distbench.env import Machine
from distbench.plan.cells import Cell
from distbench.spec import Suite
from distbench.spec.batch import Indivisible
from distbench.spec.checking import Finding
from distbench.spec.plugins import Plugin
from distbench.spec.work import Work, blame
from distbench.strategies.base import Strategy, missing_package


class Checks:
    """Gathers the mistakes of a suite over all of its cells; asks each plug-in once a choice."""

    def __init__(self, suite: Suite, machine: Machine) -> None:
        self.findings: list[Finding] = []
        self._suite = suite
        self._machine = machine
        self._seen: set[object] = set()
        self._launcher = registry.make("launchers", suite.launcher)

    def work(self, cell: Cell, work: Work) -> None:
        """Check that the shapes are possible and that the data fits them."""
        if self._is_new(work.workload, "shape"):
            problem = work.workload.instance.problem()
            self._plugin_finding(cell, "workload", work.workload, problem)
        shape = work.workload.instance.shape
        if shape is not None and self._is_new(work.workload, work.data):
            self._data_finding(cell, work, work.data.instance.problem(shape))

    def processes(self, cell: Cell) -> None:
        """Check that the launcher can start the processes."""
        processes = cell.strategy.plugin.instance.processes(cell.world_size)
        if not self._is_new("processes", processes, cell.world_size, cell.block):
            return
        problem = self._launcher.problem(processes, self._machine)
        if problem:
            self.findings.append(Finding(self._world_size_place(cell), problem, cell.world_size))

    def batch(self, cell: Cell, work: Work) -> tuple[Batch, str | None]:
        """Return the batch of *cell*, and why the case can't be run if that is due to ``auto``."""
        try:
            return work.batch.at(cell.world_size), None
        except Indivisible as error:
            problem = error
        size = getattr(work.batch, problem.field)
        if not cell.sizes_given and _is_divisible(work, 1):
            # the machine chose this world size, not the suite: no mistake, but no case either
            return work.batch.as_asked(cell.world_size), f"batch.{problem.field} = {size} {problem}"
        self.findings.append(Finding(cell.place_of(("batch", problem.field)), str(problem), size))
        return work.batch.as_asked(cell.world_size), None

    def unsupported(self, case: Case, strategy: Strategy, workload: Plugin) -> str | None:
        """Return why *case* can't run on this machine, or None if it can."""
        missing = missing_package(strategy, self._machine) or _missing(
            workload.instance.packages, self._machine
        )
        return missing or strategy.problem(case, self._machine)

    def _is_new(self, *what: object) -> bool:
        # plug-ins are compared by identity: the same object stands for the same choice
        if what in self._seen:
            return False
        self._seen.add(what)
        return True

    def _plugin_finding(self, cell: Cell, root: str, plugin: Plugin, problem: str | None) -> None:
        if problem:
            choice = plugin.choice
            path, value = blame((root, choice.name), choice.options, problem)
            self.findings.append(Finding(cell.place_of(tuple(map(str, path))), problem, value))

    def _data_finding(self, cell: Cell, work: Work, problem: str | None) -> None:
        if not problem:
            return
        options = work.data.choice.options
        path, _ = blame(("data", work.data.choice.name), options, problem)
        is_about_data = len(path) == 3 or "data" in cell.work
        root, plugin = ("data", work.data) if is_about_data else ("workload", work.workload)
        self._plugin_finding(cell, root, plugin, problem)

    def _world_size_place(self, cell: Cell) -> tuple[str | int, ...]:
        if cell.block:
            return (*cell.block, "world_size")
        given = self._suite.world_sizes
        is_listed = given is not None and cell.world_size in given
        return ("world_sizes", given.index(cell.world_size)) if given and is_listed else ("world_sizes",)


def _is_divisible(work: Work, world_size: int) -> bool:
    try:
        work.batch.at(world_size)
    except Indivisible:
        return False
    return True


def _missing(packages: Iterable[str], machine: Machine) -> str | None:
    absent = [package for package in packages if package not in machine.packages]
    return f"{absent[0]} is not installed; pip install {absent[0]}" if absent else None
