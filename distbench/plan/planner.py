"""From a suite and a machine to cases and trials."""

import dataclasses
import itertools
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import cast

from distbench.core import registry
from distbench.core.case import Case, Choice, Compile
from distbench.core.errors import SuiteError
from distbench.core.job import PlannedTrial, job_kind
from distbench.core.machine import Machine
from distbench.core.suite_mistakes import KeyPath, SuiteMistake
from distbench.launchers.base import Launcher
from distbench.plan.case_names import base_name, place_name, unique
from distbench.plan.cells import Cell, cells
from distbench.plan.checks import Checks, is_divisible
from distbench.plan.environments import with_environments
from distbench.plan.globs import check_gate, check_only
from distbench.suite import Suite
from distbench.suite.cells import located
from distbench.suite.plugin_options import Plugin, Plugins
from distbench.suite.sections import to_plain
from distbench.suite.suite import mistakes
from distbench.suite.work import Work, WorkChecker
from distbench.suite.yaml_reader import key_text
from distbench.system.machine import no_gpu

MAX_TRIALS = 1_000_000


_Draft = tuple[Cell, Case, str | None]


@dataclass(frozen=True)
class Planned:
    """A case of a run and, if it can't run here, why."""

    case: Case
    problem: str | None = None


@dataclass(frozen=True)
class Plan:
    """The cases and trials of a suite on a machine."""

    cases: list[Planned]
    trials: list[PlannedTrial]
    """In the order of launch; cases with a problem have none."""


def machine_of(suite: Suite) -> Machine:
    """The machine on which the launcher of *suite* starts its ranks.

    Raises:
        SuiteError: it can start none.
    """
    launcher: Launcher = registry.make("launchers", suite.launcher)
    if mistake := launcher.mistake():
        raise _refused_launcher(suite, *mistake)
    return launcher.machine(suite.device)


def check_startable(suite: Suite) -> None:
    """See that this process can start the ranks of *suite*.

    Raises:
        SuiteError: another one has to.
    """
    launcher: Launcher = registry.make("launchers", suite.launcher)
    if why := launcher.elsewhere():
        raise _refused_launcher(suite, "", why)


def _refused_launcher(suite: Suite, option: str, why: str) -> SuiteError:
    place = ("launcher", suite.launcher.name, *([option] if option else []))
    return SuiteError([suite.places.mistake(place, why, suite.launcher.options.get(option))])


def make(suite: Suite, machine: Machine | None = None) -> Plan:
    """Cases and trials of *suite* on *machine*, by default that of its launcher.

    Raises:
        SuiteError: all mistakes that can be known before launch.
    """
    machine = with_environments(suite, machine or machine_of(suite))
    if suite.device == "cuda" and machine.devices == 0:
        message = "no CUDA device on this machine; use cpu, or auto for what is available"
        if why := no_gpu():
            message = f"{why}; use cpu"
        raise SuiteError([suite.places.mistake(("device",), message, "cuda")])
    every = _Planner(suite, machine).cases()
    # including cases that can't run here or are left out: a suite is valid or invalid as a whole
    wrong = [
        finding
        for word, section in suite.jobs.items()
        for finding in job_kind(word).problems(section, [item.case for item in every])
    ]
    if wrong:
        raise SuiteError(mistakes(wrong, suite.places))
    check_gate(suite, [item.case for item in every])
    planned = _only(suite, every)
    return Plan(planned, _tasks(suite, [item.case for item in planned if item.problem is None], machine))


def refusing(suite: Suite, plan: Plan, machine: Machine, refusal: Callable[[Case], str | None]) -> Plan:
    """*plan* of *suite* on *machine*, whose cases that could run are asked for a *refusal*, too."""
    cases = [item if item.problem else replace(item, problem=refusal(item.case)) for item in plan.cases]
    return Plan(cases, _tasks(suite, [item.case for item in cases if item.problem is None], machine))


def _tasks(suite: Suite, cases: Sequence[Case], machine: Machine) -> list[PlannedTrial]:
    tasks: list[PlannedTrial] = []
    for word, section in suite.jobs.items():
        # at most one more than allowed: a kind may yield far more than fit into memory
        tasks += itertools.islice(job_kind(word).tasks(section, cases, machine), MAX_TRIALS + 1)
        if len(tasks) > MAX_TRIALS:
            raise SuiteError([suite.places.mistake((word,), f"gives more than {MAX_TRIALS:,} trials")])
    return tasks


def _only(suite: Suite, planned: list[Planned]) -> list[Planned]:
    if not suite.only:
        return planned
    check_only(suite, [item.case for item in planned])
    return [item for item in planned if any(item.case.matches(glob) for glob in suite.only)]


class _Planner:
    def __init__(self, suite: Suite, machine: Machine) -> None:
        self._suite = suite
        self._machine = machine
        self._checks = Checks(suite, machine)
        self._cells = cells(suite, machine)
        self._decided: dict[str, Plugin] = {}
        self._threads = _auto_threads(machine, [cell.world_size for cell in self._cells])

    def cases(self) -> list[Planned]:
        """Cases, with the reasons of those that can't run here.

        Raises:
            SuiteError: something can't work on any machine, or not with these world sizes.
        """
        drafts = self._drafts()
        if not drafts and not self._checks.findings:
            self._checks.findings.append(SuiteMistake((), "no cases left after exclude"))
        self._add_duplicates(drafts)
        if self._checks.findings:
            raise SuiteError(mistakes(self._checks.findings, self._suite.places))
        named = unique([case for _, case, _ in drafts])
        return [Planned(case, problem) for case, (_, _, problem) in zip(named, drafts, strict=True)]

    def _drafts(self) -> list[_Draft]:
        checker = WorkChecker(Plugins())
        drafts: list[_Draft] = []
        # cells with the same work are consecutive
        for _, grouped in itertools.groupby(self._cells, key=lambda cell: id(cell.work)):
            alike = list(grouped)
            work, findings = checker.check(alike[0].work)
            self._checks.findings += [located(finding, alike[0].origins) for finding in findings]
            if work is not None:
                drafts += self._cases_of(alike, self._on_machine(work))
        return _fitting(drafts)

    def _cases_of(self, cells: Sequence[Cell], work: Work) -> list[_Draft]:
        divided = {each.world_size for each in cells if is_divisible(work, each.world_size, each.data_ranks)}
        return [self._case(cell, work, divided) for cell in cells]

    def _on_machine(self, work: Work) -> Work:
        """*work* with what its workload leaves to the machine decided."""
        plugin = work.workload
        if (decided := plugin.instance.on(self._machine)) is plugin.instance:
            return work
        key = json.dumps([plugin.choice.name, to_plain(decided)])
        choice = Choice(plugin.choice.name, to_plain(decided))
        return dataclasses.replace(work, workload=self._decided.setdefault(key, Plugin(choice, decided)))

    def _case(self, cell: Cell, work: Work, divided: Collection[int]) -> _Draft:
        self._checks.work(cell, work)
        self._checks.processes(cell)
        batch, problem = self._checks.batch(cell, work, divided)
        threads = work.scalars.threads
        lr = work.batch.learning_rate(work.optimizer.lr, batch.global_batch_size)
        scaled = "" if lr == work.optimizer.lr else f"/scaled_lr={lr:.3g}"
        case = Case(
            name=base_name(cell, batch, work.precision) + scaled + place_name(work.scalars.environment),
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
            compile=_compile(work.scalars.compile),
            threads=self._threads if threads == "auto" else threads,
            seed=work.scalars.seed,
            initial_weights=work.scalars.initial_weights,
            environment=work.scalars.environment,
        )
        return cell, case, problem or self._checks.unsupported(cell, case, work)

    def _add_duplicates(self, drafts: Sequence[_Draft]) -> None:
        first: dict[str, Cell] = {}
        for cell, case, _ in drafts:
            earlier = first.setdefault(case.id, cell)
            if earlier is not cell:
                here, there = _differing_places(cell, earlier)
                line = self._suite.places.at(there)[1]
                other = f"{key_text(there)}{f' (line {line})' if line else ''}"
                message = f"duplicates {other}; remove one of them"
                self._checks.findings.append(SuiteMistake(here, message, case.name))


def _fitting(drafts: Sequence[_Draft]) -> list[_Draft]:
    """*drafts* without the meshes that nobody asked for by name and that don't fit or are there already.

    Where none of all meshes fits, the first stays, with its reason.
    """
    asked = {case.id for cell, case, _ in drafts if not cell.is_optional}
    fits = {_offer(cell) for cell, _, problem in drafts if cell.is_optional and problem is None}
    kept: dict[object, _Draft] = {}
    for number, draft in enumerate(drafts):
        cell, case, problem = draft
        if not cell.is_optional:
            kept[number] = draft
        elif problem is None and case.id not in asked:
            kept[case.id] = draft
        elif problem is not None and _offer(cell) not in fits:
            kept.setdefault(_offer(cell), draft)
    return [*kept.values()]


def _offer(cell: Cell) -> tuple[object, ...]:
    """What all meshes of a strategy on some devices have in common."""
    return cell.strategy.origin, cell.world_size, id(cell.work), cell.block


def _compile(asked: bool | str) -> Compile:
    named: dict[bool | str, Compile] = {False: "none", True: "default"}
    return named.get(asked) or cast(Compile, asked)


def _auto_threads(machine: Machine, world_sizes: Sequence[int]) -> int:
    if machine.device == "cuda":
        return max(1, machine.cores * machine.nodes // max(1, machine.devices))
    return max(1, machine.devices // max(world_sizes, default=1))


def _differing_places(cell: Cell, other: Cell) -> tuple[KeyPath, KeyPath]:
    if cell.block != other.block:
        return cell.block or cell.strategy.origin, other.block or other.strategy.origin
    places = [*zip(cell.strategy.origins, other.strategy.origins, strict=False)]
    places += [(place, other.origins[path]) for path, place in cell.origins.items() if path in other.origins]
    # alike but for lists of different options, they are told by their strategies
    return next((pair for pair in places if pair[0] != pair[1]), places[0])
