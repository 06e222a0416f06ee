"""Builds initial weights and C++ ops before anything is timed."""

import dataclasses
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from distbench.core import registry
from distbench.core.case import CURRENT, Case, Choice
from distbench.core.grouping import grouped
from distbench.core.units import duration_text
from distbench.ipc.build_files import Event, Item, Journal, Unbuilt, write_items
from distbench.ipc.trial_files import PREPARE_FOLDER, log_file
from distbench.launchers.base import HERE, Exit, Launch, LaunchError, NodesMissingError, Place, Site
from distbench.metrics.base import Metric
from distbench.plan import Plan, check_startable
from distbench.plan.time_limits import prepare_limit
from distbench.record.run_folder import storing
from distbench.run.control import Observer, StopRequest
from distbench.run.failure_reasons import killed_text
from distbench.run.launch import environment_of, missing_nodes, one_process, weights_file
from distbench.strategies.base import SINGLE, Strategy
from distbench.suite import Suite
from distbench.system.log_files import Logs
from distbench.system.machine import cache_folder, is_installed
from distbench.system.processes import ending

_POLL_S = 0.25
_LONG_S = 5.0
"""After so many seconds it is said what is being built: most of it is there already."""
_WEIGHTS = "initial weights"


def prepare(suite: Suite, plan: Plan, folder: Path, run_id: str, observer: Observer) -> dict[str, Unbuilt]:
    """Build everything a run of *plan* needs, without measuring; return what failed.

    Raises:
        KeyboardInterrupt: Ctrl-C or SIGTERM; no process is left.
        SuiteError: another process has to start the ranks.
    """
    check_startable(suite)
    cases = [item.case for item in plan.cases if item.problem is None]
    launcher = registry.make("launchers", suite.launcher)
    with StopRequest().listening() as stop, closing(launcher.open(run_id)) as site:
        failed = Preparation(folder, suite, observer, site, stop).run(cases)
    if stop.asked:
        raise KeyboardInterrupt
    return failed


def metric_item(name: str) -> str:
    """Name of the item that the metric called *name* builds."""
    return f"metric {name}"


def strategy_item(case: Case) -> str:
    """Name of the item that the strategy of *case* builds; empty: it builds none."""
    strategy: Strategy = registry.make("strategies", case.strategy)
    name = strategy.prepared(case)
    return f"{name}{_there(case)}" if name else ""


def _there(case: Case) -> str:
    """The end of the name of an item that each Python environment has one of."""
    return "" if case.environment == CURRENT else f" @{case.environment}"


def weights_item(case: Case) -> str:
    """Name of the item of the initial weights of *case*."""
    key = weights_file(Path(), case).stem.removeprefix("weights-")
    return f"{_WEIGHTS} of {case.workload.name} ({key})"


def item_text(item: str) -> str:
    """Name of *item* for messages: of weights without their key, as those of each precision fail alike."""
    return item.partition(" (")[0] if item.startswith(_WEIGHTS) else item


def _at_home(case: Case) -> Case:
    """A case in whose environment the initial weights of *case* are built: distbench's own.

    So neither the order of cases nor another environment, which may be broken, decides what all start from.
    """
    if case.environment == CURRENT or not is_installed("torch"):
        return case
    # what its strategy imports may be missing here
    return dataclasses.replace(case, environment=CURRENT, strategy=Choice(SINGLE))


@dataclass(frozen=True)
class _Need:
    """Something to build, and a case in whose environment it is."""

    where: Case
    item: Item


@dataclass(frozen=True)
class Preparation:
    """Builds everything before anything is timed, in one process per environment."""

    folder: Path
    suite: Suite
    observer: Observer
    site: Site
    stop: StopRequest
    place: Place = HERE

    def run(self, cases: list[Case]) -> dict[str, Unbuilt]:
        """Build what *cases* need; return the items that failed, with reasons."""
        groups = self._groups(cases)
        progress = Progress(self.observer, sum(map(len, groups)))
        limit_s = prepare_limit(self.suite.limits, cases)
        for number, needs in enumerate(groups):
            if not self.stop.ends:
                items = [need.item for need in needs]
                launch = self._launch(needs[0].where, number, items)
                progress.starting()
                _Builder(launch, self.site, self.stop, progress, limit_s).build(items)
        return progress.failed

    def _groups(self, cases: list[Case]) -> list[list[_Need]]:
        """What *cases* need, each thing once, by the environments in which it is built."""
        needs: dict[str, _Need] = {}
        for need in self._needs(sorted(cases, key=lambda case: case.environment != CURRENT)):
            needs.setdefault(need.item.name, need)
        return list(grouped(needs.values(), lambda need: _environment(need.where)).values())

    def _needs(self, cases: list[Case]) -> Iterable[_Need]:
        for choice in self.suite.metrics:
            metric: Metric = registry.make("metrics", choice)
            builds = type(metric).prepare is not Metric.prepare
            for case in cases if builds else ():
                if case.device in metric.devices:
                    name = metric_item(choice.name) + _there(case)
                    yield _Need(case, Item("metric", name, dataclasses.asdict(choice)))
        for case in cases:
            if name := strategy_item(case):
                yield _Need(case, Item("strategy", name, case.to_json()))
        for case in cases:
            file = str(weights_file(self.folder, case))
            yield _Need(_at_home(case), Item("weights", weights_item(case), case.to_json(), file))

    def _launch(self, case: Case, number: int, items: Sequence[Item]) -> Launch:
        folder = self.folder / PREPARE_FOLDER / str(number)
        with storing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            (self.folder / "scratch").mkdir(exist_ok=True)
        file = folder / "prepare.json"
        shape = one_process("prepare", file, self.folder, self.suite, case, self.place, self.stop)
        weights = [Path(item.file) for item in items if item.file]
        return dataclasses.replace(shape, on_each_cache=True, leaves=weights)


class Progress:
    """What was built so far, shown to an observer."""

    def __init__(self, observer: Observer, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.failed: dict[str, Unbuilt] = {}
        """Item that could not be built -> reason."""
        self.building = ""
        """Item that is being built now; empty: none."""
        self._observer = observer
        self._done, self._total = 0, total
        self._clock = clock
        self._began = self._since = clock()

    def starting(self) -> None:
        """A process is started that builds; it loads torch first."""
        self._since = self._clock()
        self._observer.item_started("starting the process that builds", self._done, self._total)

    def waited(self) -> None:
        """Say what takes long, once; what is there already takes no time."""
        if self._clock() - self._since < _LONG_S:
            return
        self._since = float("inf")
        what = f"building {self.building}" if self.building else "waiting for the process that builds"
        more = ", once on this machine" if self.building and not self.building.startswith(_WEIGHTS) else ""
        self._observer.note(f"{what}{more} (more than {_LONG_S:g} s)")

    def heard(self, event: Event) -> None:
        """An item was begun or has ended."""
        if event.ended:
            for text in event.notes:
                self._observer.note(text)
            self.ended(event.item, Unbuilt(event.failed, event.refused) if event.failed else None)
        else:
            self.building, self._began = event.item, self._clock()
            self._since = self._began
            self._observer.item_started(event.item, self._done, self._total)

    def ended(self, item: str, failed: Unbuilt | None = None) -> None:
        """*item* was built, or could not be because of *failed*."""
        if failed:
            self.failed[item] = failed
        seconds = self._clock() - self._began if item == self.building else 0.0
        self._observer.item_ended(item, self._done, self._total, seconds, failed=bool(failed))
        self.building = ""
        self._done += 1


class _Builder:
    """Builds the items of one environment in one process, and in another one what is left if it crashes."""

    def __init__(
        self, launch: Launch, site: Site, stop: StopRequest, progress: Progress, limit_s: float
    ) -> None:
        self._launch, self._site, self._stop, self._progress = launch, site, stop, progress
        self._limit_s, self._end = limit_s, float("inf")
        self._log = log_file(launch.file.parent, 0)

    def build(self, items: list[Item]) -> None:
        """Build *items*; what fails is in the progress."""
        left = {item.name: item for item in items}
        while True:
            why = self._attempt(left)
            if not left or self._stop.asked:
                return None
            culprit = self._progress.building
            if why is None:
                return self._give_up(left, f"exceeded limits.prepare = {duration_text(self._limit_s)}")
            if not culprit:
                return self._give_up(left, why)
            del left[culprit]
            told = f"{why}; its log: {self._log}; the cache: {cache_folder()}"
            self._progress.ended(culprit, Unbuilt(told))

    def _attempt(self, left: dict[str, Item]) -> str | None:
        """Build what is *left* in a new process; return how it failed (None: it was done, or is too late)."""
        with storing(self._launch.file):
            write_items(self._launch.file, list(left.values()))
        journal = Journal(self._launch.file)
        logs = Logs([self._log])
        exits: list[Exit] = []
        try:
            handle = self._site.launch(self._launch)
            # the import of torch is over by now in a warm parent
            self._end = min(self._end, time.monotonic() + self._limit_s)
            try:
                while not exits and time.monotonic() < self._end and not self._stop.asked:
                    exits = handle.wait(_POLL_S)
                    logs.cut()
                    self._hear(journal, left)
                    self._progress.waited()
            finally:
                handle.stop()
        except NodesMissingError as error:
            raise missing_nodes(error, self._launch.root) from error
        except LaunchError as error:
            return str(error)
        finally:
            self._hear(journal, left)
        return _ended(exits[0]) if exits else None

    def _hear(self, journal: Journal, left: dict[str, Item]) -> None:
        """Pass on what is new in *journal*, and take from *left* what was built or failed."""
        for event in journal.news():
            self._progress.heard(event)
            if event.ended:
                left.pop(event.item)

    def _give_up(self, left: Iterable[str], why: str) -> None:
        """End what is *left*; if one of it was being built, the others were not begun."""
        culprit = self._progress.building
        log = f"; see {self._log}" if self._log.is_file() else ""
        for name in left:
            told = f"{why}{log}" if culprit in ("", name) else f"not built: {why}"
            self._progress.ended(name, Unbuilt(told))


def _ended(exited: Exit) -> str:
    how = f"the process that builds it {ending(exited.code)}"
    return f"{how}: {killed_text(exited.memory)}" if exited.code == -signal.SIGKILL else how


def _environment(case: Case) -> tuple[str, frozenset[tuple[str, str]]]:
    variables = environment_of(registry.make("strategies", case.strategy), case)
    return case.environment, frozenset(variables.items())
