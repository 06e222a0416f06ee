"""Builds initial weights and C++ ops before anything is timed."""

import dataclasses
import json
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from distbench import registry
from distbench.case import Case
from distbench.grouping import grouped
from distbench.launchers.base import HERE, Launch, LaunchError, Place, Site
from distbench.plan import Plan, Task
from distbench.record.store import storing, write_json
from distbench.run.control import Observer, StopRequest
from distbench.run.launch import environment_of, launch_for, weights_file
from distbench.suite import Suite


def prepare(suite: Suite, plan: Plan, folder: Path, run_id: str, observer: Observer) -> dict[str, str]:
    """Build everything a run of *plan* needs, without measuring; return what failed."""
    cases = [item.case for item in plan.cases if item.problem is None]
    launcher = registry.make("launchers", suite.launcher)
    with StopRequest().listening() as stop, closing(launcher.open(run_id)) as site:
        return Preparation(folder, suite, observer, site, stop).run(cases)


@dataclass(frozen=True)
class Preparation:
    """Builds everything before anything is timed, in one process per environment."""

    folder: Path
    suite: Suite
    observer: Observer
    site: Site
    stop: StopRequest
    place: Place = HERE

    def run(self, cases: list[Case]) -> dict[str, str]:
        """Build what *cases* need; return the items that failed, with reasons."""
        failed: dict[str, str] = {}
        weights: set[str] = set()
        self.observer.note(
            "preparing: initial weights and C++ ops (takes a minute or two the first time on a machine)"
        )
        for number, group in enumerate(grouped(cases, _environment).values()):
            if not self.stop.asked:
                failed |= self._prepare(group, number, weights)
        return failed

    def _prepare(self, cases: list[Case], number: int, known: set[str]) -> dict[str, str]:
        folder = self.folder / "prepare" / str(number)
        with storing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            (self.folder / "scratch").mkdir(exist_ok=True)
        weights = {str(weights_file(self.folder, case)): case.to_json() for case in cases}
        weights = {path: case for path, case in weights.items() if path not in known}
        known |= weights.keys()
        file = folder / "prepare.json"
        by_strategy = {case.label: case.to_json() for case in cases}
        metrics = [dataclasses.asdict(choice) for choice in self.suite.metrics]
        todo = {"metrics": metrics, "cases": list(by_strategy.values()), "weights": weights}
        write_json(file, todo)
        shape = launch_for(self.folder, self.suite, Task(cases[0]), self.place, self.stop)
        launch = dataclasses.replace(shape, entry="prepare", file=file, processes=1, nodes=1, leftovers=())
        try:
            return self._watch(launch, folder)
        except LaunchError as error:
            if self.stop.asked:
                return {}
            return {f"strategy {label}": str(error) for label in by_strategy}

    def _watch(self, launch: Launch, folder: Path) -> dict[str, str]:
        handle = self.site.launch(launch)
        result = launch.file.with_suffix(".result.json")
        end = time.monotonic() + self.suite.limits.prepare
        ended = False
        while not ended and time.monotonic() < end and not self.stop.asked:
            ended = bool(handle.wait(0.25))
        handle.stop()
        if result.is_file():
            report = json.loads(result.read_text())
            for note in report["notes"]:
                self.observer.note(note)
            return dict(report["failed"])
        if self.stop.asked:
            return {}
        why = "exited early" if ended else f"exceeded limits.prepare = {self.suite.limits.prepare:g} s"
        return {"preparation": f"{why}; see {folder / 'rank0.log'}"}


def _environment(case: Case) -> frozenset[tuple[str, str]]:
    return frozenset(environment_of(registry.make("strategies", case.strategy), case).items())
