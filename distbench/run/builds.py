"""Build initial weights and C++ ops before the first trial."""

import dataclasses
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from distbench.core import registry
from distbench.core.case import CURRENT_ENVIRONMENT, NATIVE_ENGINE, Case, PluginChoice
from distbench.core.grouping import group_by
from distbench.core.job import job_kind
from distbench.core.units import format_duration
from distbench.engines.base import engine_of
from distbench.ipc.build_files import BuildEvent, BuildFailure, BuildItem, BuildJournalReader, write_items
from distbench.ipc.launch_spec import CURRENT_PYTHON, LaunchSpec, PythonTarget
from distbench.ipc.messages import RankExit
from distbench.ipc.trial_files import PREPARE_FOLDER, log_file
from distbench.launchers.base import LaunchError, LaunchSession, NodesUnavailableError
from distbench.metrics.base import Metric
from distbench.plan import Plan, PlannedTrial, check_launcher
from distbench.plan.time_limits import prepare_limit
from distbench.record import Status
from distbench.record.run_folder import resumable_write_errors
from distbench.run.failure_reasons import sigkill_text
from distbench.run.interruption import StopRequest
from distbench.run.launch import nodes_unavailable_error, process_launch, rank_environment, weights_file
from distbench.run.observer import Observer
from distbench.strategies.base import REFERENCE_STRATEGY, Strategy
from distbench.suite import Suite
from distbench.system.cache import cache_folder
from distbench.system.log_files import BoundedLogs
from distbench.system.machine import is_installed
from distbench.system.processes import exit_text

_POLL_S = 0.25
_SLOW_S = 5.0
"""Seconds after which the observer is notified of what is being built: cached items take none."""
_WEIGHTS_NAME = "initial weights"
ALL_BUILDS = "preparation"
"""Name in place of an item's for a failure that concerns all of them."""


def build_all(
    suite: Suite, plan: Plan, folder: Path, run_id: str, observer: Observer
) -> dict[str, BuildFailure]:
    """Build everything a run of *plan* needs, without measuring; return what failed.

    Raises:
        KeyboardInterrupt: Ctrl-C or SIGTERM; no process is left.
        SuiteError: another process has to start the ranks.
    """
    check_launcher(suite)
    cases = [item.case for item in plan.cases if item.problem is None]
    launcher = registry.create_plugin("launchers", suite.launcher)
    with StopRequest().handle_signals() as stop, closing(launcher.open_session(run_id)) as site:
        failed = BuildRunner(folder, suite, observer, site, stop).run(cases)
    if stop.stop_now:
        raise KeyboardInterrupt
    return failed


def metric_build_name(name: str) -> str:
    """Name of the build item of the metric *name*."""
    return f"metric {name}"


def engine_build_name(case: Case) -> str:
    """Name of the build item of the engine of *case*; empty: it builds none."""
    is_built = engine_of(case).is_built()
    return f"engine {case.engine.name}{_environment_suffix(case)}" if is_built else ""


def strategy_build_name(case: Case) -> str:
    """Name of the build item of the strategy of *case*; empty: it builds none."""
    strategy: Strategy = registry.create_plugin("strategies", case.strategy)
    name = strategy.build_name(case)
    return f"{name}{_environment_suffix(case)}" if name else ""


def _environment_suffix(case: Case) -> str:
    """Suffix of the names of items that are built once per Python environment."""
    return "" if case.environment == CURRENT_ENVIRONMENT else f" @{case.environment}"


def weights_build_name(case: Case) -> str:
    """Name of the build item of the initial weights of *case*."""
    key = weights_file(Path(), case).stem.removeprefix("weights-")
    return f"{_WEIGHTS_NAME} of {case.workload.name} ({key})"


def _short_build_name(item: str) -> str:
    """Name of *item* for messages: weights without their key, as those of each precision fail alike."""
    return item.partition(" (")[0] if item.startswith(_WEIGHTS_NAME) else item


def cases_to_build(tasks: Sequence[PlannedTrial]) -> list[Case]:
    """Cases for which something has to be built before *tasks* run."""
    training = [task for task in tasks if job_kind(task.job.kind).trains_model]
    return [case for task in training for case in (task.case, *task.fallbacks)]


def missing_build(failed: Mapping[str, BuildFailure], case: Case) -> tuple[Status, str] | None:
    """Status and reason of a trial of *case* if it needs one of the *failed* items; None if it needs none."""
    for item in (ALL_BUILDS, strategy_build_name(case), engine_build_name(case), weights_build_name(case)):
        if failure := failed.get(item):
            if failure.refused:
                return Status.UNSUPPORTED, failure.reason
            # on one line: the last line of an exception is often the reason
            return Status.PREPARE_FAILED, f"{_short_build_name(item)}: {' '.join(failure.reason.split())}"
    return None


def _weights_case(case: Case) -> Case:
    """Case in whose environment the initial weights of *case* are built: distbench's own.

    Thus neither the order of cases nor another environment, which may be broken, nor variables of the case
    decide the initial weights.
    """
    case = dataclasses.replace(case, env={}, engine=NATIVE_ENGINE)
    if case.environment == CURRENT_ENVIRONMENT or not is_installed("torch"):
        return case
    # packages that its strategy imports may be missing here
    return dataclasses.replace(
        case, environment=CURRENT_ENVIRONMENT, strategy=PluginChoice(REFERENCE_STRATEGY)
    )


@dataclass(frozen=True)
class _PlannedBuild:
    """An item to build, and a case in whose environment it is built."""

    case: Case
    item: BuildItem


@dataclass(frozen=True)
class BuildRunner:
    """Builds everything before the first trial, in one process per environment."""

    folder: Path
    suite: Suite
    observer: Observer
    session: LaunchSession
    stop: StopRequest
    target: PythonTarget = CURRENT_PYTHON

    def run(self, cases: list[Case]) -> dict[str, BuildFailure]:
        """Build what *cases* need; return the items that failed, with reasons."""
        groups = self._groups(cases)
        progress = BuildProgress(self.observer, sum(map(len, groups)))
        limit_s = prepare_limit(self.suite.limits, cases)
        for number, needs in enumerate(groups):
            if not self.stop.is_set:
                items = [need.item for need in needs]
                launch = self._launch(needs[0].case, number, items)
                progress.process_started()
                _EnvironmentBuilds(launch, self.session, self.stop, progress, limit_s).build(items)
        return progress.failed

    def _groups(self, cases: list[Case]) -> list[list[_PlannedBuild]]:
        """Group the items that *cases* need, each once, by the environments in which they are built."""
        needs: dict[str, _PlannedBuild] = {}
        for need in self._planned_builds(
            sorted(cases, key=lambda case: case.environment != CURRENT_ENVIRONMENT)
        ):
            needs.setdefault(need.item.name, need)
        return list(group_by(needs.values(), lambda need: _environment_key(need.case)).values())

    def _planned_builds(self, cases: list[Case]) -> Iterable[_PlannedBuild]:
        # processes that build import no framework: one that can't be imported concerns its own cases
        place = {case.id: dataclasses.replace(case, engine=NATIVE_ENGINE) for case in cases}
        for choice in self.suite.metrics:
            metric: Metric = registry.create_plugin("metrics", choice)
            builds = type(metric).prepare is not Metric.prepare
            for case in cases if builds else ():
                if case.device in metric.devices:
                    name = metric_build_name(choice.name) + _environment_suffix(case)
                    yield _PlannedBuild(place[case.id], BuildItem("metric", name, dataclasses.asdict(choice)))
        for case in cases:
            if name := strategy_build_name(case):
                yield _PlannedBuild(place[case.id], BuildItem("strategy", name, case.to_json()))
            if name := engine_build_name(case):
                yield _PlannedBuild(place[case.id], BuildItem("engine", name, case.to_json()))
        for case in cases:
            file = str(weights_file(self.folder, case))
            yield _PlannedBuild(
                _weights_case(case), BuildItem("weights", weights_build_name(case), case.to_json(), file)
            )

    def _launch(self, case: Case, number: int, items: Sequence[BuildItem]) -> LaunchSpec:
        folder = self.folder / PREPARE_FOLDER / str(number)
        with resumable_write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            (self.folder / "scratch").mkdir(exist_ok=True)
        file = folder / "prepare.json"
        shape = process_launch("prepare", file, self.folder, self.suite, case, self.target)
        weights = tuple(Path(item.file) for item in items if item.file)
        return dataclasses.replace(shape, once_per_cache=True, output_files=weights)


class BuildProgress:
    """Progress of builds, reported to an observer."""

    def __init__(self, observer: Observer, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.failed: dict[str, BuildFailure] = {}
        """Item that could not be built -> reason."""
        self.current = ""
        """Item that is being built now; empty: none."""
        self._observer = observer
        self._done, self._total = 0, total
        self._clock = clock
        self._began = self._waiting_since = clock()

    def process_started(self) -> None:
        """Handle the start of a build process, which loads torch first."""
        self._waiting_since = self._clock()
        self._observer.build_started("starting the build process", self._done, self._total)

    def warn_if_slow(self) -> None:
        """Note once what takes long; cached items take no time."""
        if self._clock() - self._waiting_since < _SLOW_S:
            return
        self._waiting_since = float("inf")
        what = f"building {self.current}" if self.current else "waiting for the build process"
        more = ", once on this machine" if self.current and not self.current.startswith(_WEIGHTS_NAME) else ""
        self._observer.note(f"{what}{more} (more than {_SLOW_S:g} s)")

    def handle(self, event: BuildEvent) -> None:
        """Handle a journal event: an item was begun or has ended."""
        if event.ended:
            for text in event.notes:
                self._observer.note(text)
            self.finish(event.item, BuildFailure(event.failed, event.refused) if event.failed else None)
        else:
            self.current, self._began = event.item, self._clock()
            self._waiting_since = self._began
            self._observer.build_started(event.item, self._done, self._total)

    def finish(self, item: str, failed: BuildFailure | None = None) -> None:
        """Handle the end of *item*: built, or *failed*."""
        if failed:
            self.failed[item] = failed
        seconds = self._clock() - self._began if item == self.current else 0.0
        self._observer.build_ended(item, self._done, self._total, seconds, failed=bool(failed))
        self.current = ""
        self._done += 1


class _EnvironmentBuilds:
    """Builds the items of one environment in one process.

    If that crashes, a new process builds the rest.
    """

    def __init__(
        self,
        launch: LaunchSpec,
        session: LaunchSession,
        stop: StopRequest,
        progress: BuildProgress,
        limit_s: float,
    ) -> None:
        self._launch, self._session, self._stop, self._progress = launch, session, stop, progress
        self._limit_s, self._end = limit_s, float("inf")
        self._log = log_file(launch.instructions.parent, 0)

    def build(self, items: list[BuildItem]) -> None:
        """Build *items*; failures are recorded in the progress."""
        left = {item.name: item for item in items}
        while True:
            why = self._attempt(left)
            if not left or self._stop.stop_now:
                return None
            culprit = self._progress.current
            if why is None:
                return self._give_up(left, f"exceeded limits.prepare = {format_duration(self._limit_s)}")
            if not culprit:
                return self._give_up(left, why)
            del left[culprit]
            message = f"{why}; log: {self._log}; cache: {cache_folder()}"
            self._progress.finish(culprit, BuildFailure(message))

    def _attempt(self, left: dict[str, BuildItem]) -> str | None:
        """Build what is *left* in a new process; return how it failed (None: it is done, or out of time)."""
        with resumable_write_errors(self._launch.instructions):
            write_items(self._launch.instructions, list(left.values()))
        journal = BuildJournalReader(self._launch.instructions)
        logs = BoundedLogs([self._log])
        exits: list[RankExit] = []
        try:
            handle = self._session.launch(self._launch, lambda: self._stop.stop_now)
            # by now a fork server has imported torch
            self._end = min(self._end, time.monotonic() + self._limit_s)
            try:
                while not exits and time.monotonic() < self._end and not self._stop.stop_now:
                    exits = handle.wait(_POLL_S)
                    logs.trim()
                    self._read_journal(journal, left)
                    self._progress.warn_if_slow()
            finally:
                handle.stop()
        except NodesUnavailableError as error:
            raise nodes_unavailable_error(error, self._launch.run_folder) from error
        except LaunchError as error:
            return str(error)
        finally:
            self._read_journal(journal, left)
        return _exit_reason(exits[0]) if exits else None

    def _read_journal(self, journal: BuildJournalReader, left: dict[str, BuildItem]) -> None:
        """Pass on new events of *journal*, and remove from *left* the items that were built or failed."""
        for event in journal.read_new():
            self._progress.handle(event)
            if event.ended:
                left.pop(event.item)

    def _give_up(self, left: Iterable[str], why: str) -> None:
        """Fail all items *left* because of *why*; those not being built are reported as not built."""
        culprit = self._progress.current
        log = f"; see {self._log}" if self._log.is_file() else ""
        for name in left:
            message = f"{why}{log}" if culprit in ("", name) else f"not built: {why}"
            self._progress.finish(name, BuildFailure(message))


def _exit_reason(exited: RankExit) -> str:
    how = f"the build process {exit_text(exited.code)}"
    return f"{how}: {sigkill_text(exited.memory)}" if exited.code == -signal.SIGKILL else how


def _environment_key(case: Case) -> tuple[str, frozenset[tuple[str, str]]]:
    variables = rank_environment(registry.create_plugin("strategies", case.strategy), case)
    return case.environment, frozenset(variables.items())
