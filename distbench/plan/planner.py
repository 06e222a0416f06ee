"""Turn a suite and a machine into cases and trials."""

import dataclasses
import itertools
import json
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import cast

from distbench.core import registry
from distbench.core.case import Case, CompileMode, PluginChoice
from distbench.core.errors import SuiteError, UsageError
from distbench.core.job import PlannedTrial, job_kind
from distbench.core.machine import Machine
from distbench.core.suite_mistakes import KeyPath, Problem
from distbench.core.units import format_count
from distbench.launchers.base import Launcher
from distbench.plan.case_names import (
    case_name,
    check_gate_globs,
    check_only_globs,
    environment_suffix,
    make_names_unique,
)
from distbench.plan.cells import SuiteCell, expand_cells
from distbench.plan.checks import PlanChecker, is_divisible
from distbench.plan.environments import detect_environments
from distbench.suite import Suite
from distbench.suite.cells import move_to_origin
from distbench.suite.plugin_options import CheckedPlugin, PluginChecker
from distbench.suite.sections import to_json_dict
from distbench.suite.suite import locate_problems
from distbench.suite.work import CheckedWork, WorkChecker
from distbench.suite.yaml_reader import key_text
from distbench.system.machine import unsupported_gpu_text
from distbench.system.rank_variables import started_rank

MAX_TRIALS = 1_000_000
STARTED_ONCE = "distbench starts its own ranks: start it once, or set launcher: env"
"""Advice where another launcher has started distbench for each rank."""


_DraftCase = tuple[SuiteCell, Case, str | None]


@dataclass(frozen=True)
class PlannedCase:
    """A case of a run, with the reason if it can't run here."""

    case: Case
    problem: str | None = None


@dataclass(frozen=True)
class Plan:
    """The cases and trials of a suite on a machine."""

    cases: list[PlannedCase]
    trials: list[PlannedTrial]
    """In the order of launch; cases with a problem have none."""


def launcher_machine(suite: Suite) -> Machine:
    """The machine on which the launcher of *suite* starts its ranks.

    Raises:
        SuiteError: it can start none.
    """
    return check_launcher_options(suite).machine(suite.device)


def check_launcher(suite: Suite) -> None:
    """Check that this process can start the ranks of *suite*.

    Raises:
        SuiteError: another process has to.
        UsageError: another launcher has started this process beside rank 0.
    """
    launcher: Launcher = registry.create_plugin("launchers", suite.launcher)
    check_started_once(launcher)
    if why := launcher.start_hint():
        raise _launcher_error(suite, "", why)


def check_started_once(launcher: Launcher) -> None:
    """Check that *launcher* has use for processes that another one has started beside rank 0.

    Raises:
        UsageError: it has none, and this is such a process.
    """
    placed = None if launcher.joins_started_ranks else started_rank(os.environ)
    if placed and placed.rank:
        raise UsageError(f"{placed.variables}: {STARTED_ONCE}")


def check_launcher_options(suite: Suite) -> Launcher:
    """Check the options of the launcher of *suite*, and return it.

    Raises:
        SuiteError: they make every launch impossible.
    """
    launcher: Launcher = registry.create_plugin("launchers", suite.launcher)
    if mistake := launcher.option_problem():
        raise _launcher_error(suite, *mistake)
    return launcher


def _launcher_error(suite: Suite, option: str, why: str) -> SuiteError:
    place = ("launcher", suite.launcher.name, *([option] if option else []))
    return SuiteError([suite.source_map.mistake(place, why, suite.launcher.options.get(option))])


def make_plan(suite: Suite, machine: Machine | None = None) -> Plan:
    """Cases and trials of *suite* on *machine*, by default that of its launcher.

    Raises:
        SuiteError: all mistakes that can be known before launch.
    """
    machine = detect_environments(suite, machine or launcher_machine(suite))
    if suite.device == "cuda" and machine.devices == 0:
        message = "no CUDA device on this machine; use cpu, or auto for what is available"
        if why := unsupported_gpu_text():
            message = f"{why}; use cpu"
        raise SuiteError([suite.source_map.mistake(("device",), message, "cuda")])
    every = _Planner(suite, machine).plan_cases()
    # including cases that can't run here or are left out: a suite is valid or invalid as a whole
    wrong = [
        finding
        for word, section in suite.jobs.items()
        for finding in job_kind(word).problems(section, [item.case for item in every])
    ]
    if wrong:
        raise SuiteError(locate_problems(wrong, suite.source_map))
    check_gate_globs(suite, [item.case for item in every])
    planned = _refuse_repeats(_filter_cases(suite, every))
    return Plan(planned, _tasks(suite, [item.case for item in planned if item.problem is None], machine))


def with_refusals(
    suite: Suite, plan: Plan, machine: Machine, problem_of: Callable[[Case], str | None]
) -> Plan:
    """Mark cases of *plan* for which *problem_of* gives a reason as unable to run."""
    cases = [item if item.problem else replace(item, problem=problem_of(item.case)) for item in plan.cases]
    return Plan(cases, _tasks(suite, [item.case for item in cases if item.problem is None], machine))


def _tasks(suite: Suite, cases: Sequence[Case], machine: Machine) -> list[PlannedTrial]:
    tasks: list[PlannedTrial] = []
    for word, section in suite.jobs.items():
        # at most one more than allowed: a kind may yield far more than fit into memory
        tasks += itertools.islice(job_kind(word).planned_trials(section, cases, machine), MAX_TRIALS + 1)
        if len(tasks) > MAX_TRIALS:
            raise SuiteError([suite.source_map.mistake((word,), f"gives more than {MAX_TRIALS:,} trials")])
    return tasks


def _filter_cases(suite: Suite, planned: list[PlannedCase]) -> list[PlannedCase]:
    if not suite.only:
        return planned
    check_only_globs(suite, [item.case for item in planned])
    return [item for item in planned if any(item.case.matches(glob) for glob in suite.only)]


class _Planner:
    def __init__(self, suite: Suite, machine: Machine) -> None:
        self._suite = suite
        self._machine = machine
        self._checks = PlanChecker(suite, machine)
        self._cells = expand_cells(suite, machine)
        self._decided: dict[str, CheckedPlugin] = {}
        self._threads = _auto_threads(machine, [cell.world_size for cell in self._cells])

    def plan_cases(self) -> list[PlannedCase]:
        """Cases, with reasons for those that can't run here.

        Raises:
            SuiteError: something can't work on any machine, or not with these world sizes.
        """
        drafts = self._draft_all()
        if not drafts and not self._checks.problems:
            self._checks.problems.append(Problem((), "no cases left after exclude"))
        self._add_duplicates(drafts)
        if self._checks.problems:
            raise SuiteError(locate_problems(self._checks.problems, self._suite.source_map))
        named = make_names_unique([case for _, case, _ in drafts])
        return [PlannedCase(case, problem) for case, (_, _, problem) in zip(named, drafts, strict=True)]

    def _draft_all(self) -> list[_DraftCase]:
        checker = WorkChecker(PluginChecker())
        drafts: list[_DraftCase] = []
        # cells with the same work are consecutive
        for _, grouped in itertools.groupby(self._cells, key=lambda cell: id(cell.work)):
            alike = list(grouped)
            work, findings = checker.check(alike[0].work)
            self._checks.problems += [move_to_origin(finding, alike[0].origins) for finding in findings]
            if work is not None:
                drafts += self._draft_cases(alike, self._adapt_workload(work))
        return _drop_unfit_meshes(drafts)

    def _draft_cases(self, cells: Sequence[SuiteCell], work: CheckedWork) -> list[_DraftCase]:
        divided = {each.world_size for each in cells if is_divisible(work, each.world_size, each.data_ranks)}
        return [self._draft_case(cell, work, divided) for cell in cells]

    def _adapt_workload(self, work: CheckedWork) -> CheckedWork:
        """Resolve in *work* the settings that its workload leaves to the machine."""
        plugin = work.workload
        if (decided := plugin.instance.resolved_for(self._machine)) is plugin.instance:
            return work
        key = json.dumps([plugin.choice.name, to_json_dict(decided)])
        choice = PluginChoice(plugin.choice.name, to_json_dict(decided))
        return dataclasses.replace(
            work, workload=self._decided.setdefault(key, CheckedPlugin(choice, decided))
        )

    def _draft_case(self, cell: SuiteCell, work: CheckedWork, divided: Collection[int]) -> _DraftCase:
        self._checks.check_work(cell, work)
        self._checks.check_processes(cell)
        batch, problem = self._checks.divide_batch(cell, work, divided)
        threads = work.scalars.threads
        lr = work.batch.learning_rate(work.optimizer.lr, batch.global_batch_size)
        scaled = "" if lr == work.optimizer.lr else f"/scaled_lr={lr:.3g}"
        case = Case(
            name=case_name(cell, batch, work.precision)
            + scaled
            + environment_suffix(work.scalars.environment),
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
            compile=_compile_mode(work.scalars.compile),
            threads=self._threads if threads == "auto" else threads,
            seed=work.scalars.seed,
            initial_weights=work.scalars.initial_weights,
            environment=work.scalars.environment,
            loader=work.loader,
            env=work.env,
            engine=work.engine.choice,
        )
        return cell, case, problem or self._checks.unsupported_reason(cell, case, work)

    def _add_duplicates(self, drafts: Sequence[_DraftCase]) -> None:
        first: dict[str, SuiteCell] = {}
        for cell, case, _ in drafts:
            earlier = first.setdefault(case.id, cell)
            if earlier is not cell:
                here, there = _differing_places(cell, earlier)
                line = self._suite.source_map.locate(there)[1]
                other = f"{key_text(there)}{f' (line {line})' if line else ''}"
                message = f"duplicates {other}; remove one of them"
                self._checks.problems.append(Problem(here, message, case.name))


def _drop_unfit_meshes(drafts: Sequence[_DraftCase]) -> list[_DraftCase]:
    """Drop automatic meshes that do not fit or duplicate a requested case.

    If no mesh of a group fits, the first stays, with its reason.
    """
    fitting = [(cell, case) for cell, case, problem in drafts if problem is None]
    requested = {_training_id(case) for cell, case in fitting if not cell.is_optional}
    fits = {_auto_mesh_key(cell) for cell, _, problem in drafts if cell.is_optional and problem is None}
    selected: dict[object, _DraftCase] = {}
    for number, draft in enumerate(drafts):
        cell, case, problem = draft
        if not cell.is_optional:
            selected[number] = draft
        elif problem is None and (training := _training_id(case)) not in requested:
            selected[training] = draft
        elif problem is not None and _auto_mesh_key(cell) not in fits:
            selected.setdefault(_auto_mesh_key(cell), draft)
    return [*selected.values()]


def _refuse_repeats(planned: Sequence[PlannedCase]) -> list[PlannedCase]:
    """Refuse all but the first of the *planned* cases that train in the same way."""
    first: dict[str, Case] = {}
    checked = []
    for item in planned:
        case = item.case
        if item.problem is None and (earlier := first.setdefault(_training_id(case), case)) is not case:
            problem = (
                f"it is the same training as {earlier.name}: options in which they differ have no effect on "
                f"{format_count(case.world_size, 'rank')} of {case.device.upper()}; remove one of the two"
            )
            item = replace(item, problem=problem)
        checked.append(item)
    return checked


def _training_id(case: Case) -> str:
    """Id that cases share if they train in the same way."""
    strategy = registry.create_plugin("strategies", case.strategy).canonical(case)
    return replace(case, strategy=PluginChoice(case.strategy.name, to_json_dict(strategy))).id


def _auto_mesh_key(cell: SuiteCell) -> tuple[object, ...]:
    """Return the key that automatic meshes of one strategy on some devices share."""
    return cell.strategy.origin, cell.world_size, id(cell.work), cell.include


def _compile_mode(setting: bool | str) -> CompileMode:
    named: dict[bool | str, CompileMode] = {False: "none", True: "default"}
    return named.get(setting) or cast(CompileMode, setting)


def _auto_threads(machine: Machine, world_sizes: Sequence[int]) -> int:
    if machine.device == "cuda":
        return max(1, machine.cores * machine.nodes // max(1, machine.devices))
    return max(1, machine.devices // max(world_sizes, default=1))


def _differing_places(cell: SuiteCell, other: SuiteCell) -> tuple[KeyPath, KeyPath]:
    if cell.include != other.include:
        return cell.include or cell.strategy.origin, other.include or other.strategy.origin
    places = [*zip(cell.strategy.origins, other.strategy.origins, strict=False)]
    places += [(place, other.origins[path]) for path, place in cell.origins.items() if path in other.origins]
    # alike except for lists of different options, they differ in their strategies
    return next((pair for pair in places if pair[0] != pair[1]), places[0])
