"""Runs the trials of a plan one after another; every record is on the disk before the next begins."""

from __future__ import annotations

import dataclasses
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from distbench import registry
from distbench.case import Case
from distbench.launchers.base import LaunchError, Site
from distbench.metrics._checkpoint import CheckpointCosts
from distbench.metrics.base import Metric
from distbench.plan import Plan, Task
from distbench.plan.equivalence import reference_told
from distbench.record import Failure, Record, Status
from distbench.run.collect import Shell, Tables, collect
from distbench.run.launch import launch_for, trial_file, weights_file
from distbench.run.observer import Observer, Pace
from distbench.run.prepare import Preparation
from distbench.run.stop import StopRequest
from distbench.run.watch import Ending, Watch
from distbench.spec import Suite
from distbench.store import Run, RunInfo, unwritable, utc_now
from distbench.trial import result_file

_TOO_LARGE = (Status.OOM_GPU, Status.OOM_HOST)


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    interrupted: bool
    """Stopped by Ctrl-C or SIGTERM; ``--resume`` goes on."""


def execute(run: Run, info: RunInfo, suite: Suite, plan: Plan, observer: Observer) -> Outcome:
    """Run what is missing of *plan* in the folder of *run*.

    Raises:
        InfrastructureError: the disk is full; what was stored is whole.
        KeyboardInterrupt: a second Ctrl-C; no process of the run is left.
    """
    stop = StopRequest()
    with stop.listening():
        site = registry.make("launchers", suite.launcher).open(info.run_id)
        try:
            outcome = _Execution(run, info, suite, plan, observer, site, stop).run()
        finally:
            site.close()
            shutil.rmtree(run.folder / "scratch", ignore_errors=True)
    run.write_info(dataclasses.replace(info, state="interrupted" if outcome.interrupted else "finished"))
    return outcome


class _Execution:
    def __init__(
        self,
        run: Run,
        info: RunInfo,
        suite: Suite,
        plan: Plan,
        observer: Observer,
        site: Site,
        stop: StopRequest,
    ) -> None:
        self._run, self._info, self._suite, self._plan = run, info, suite, plan
        self._observer, self._site, self._stop = observer, site, stop
        self._metrics: dict[str, Metric] = {
            choice.name: registry.make("metrics", choice) for choice in suite.metrics
        }
        self._of_job: dict[str, dict[str, Metric]] = {
            "measure": self._metrics,
            "checkpoint": {"checkpoint": CheckpointCosts()},
        }
        self._known: dict[tuple[str, str, str, int], Status] = {}
        self._references: dict[str, str] = {}
        """Id of a reference -> why it has no result; empty if it has one."""

    def run(self) -> Outcome:
        for record in self._run.records():
            self._remember(record)
        impossible = [Task(item.case, problem=item.problem) for item in self._plan.cases if item.problem]
        for task in self._missing([*impossible, *self._plan.trials]):
            if task.problem:
                self._store(task, self._unlaunched(task, Status.UNSUPPORTED, task.problem))
        todo = self._missing(self._plan.trials)
        if todo:
            self._trials(todo, self._prepare([case for task in todo for case in (task.case, *task.instead)]))
        return Outcome(interrupted=self._stop.asked)

    def _missing(self, tasks: list[Task]) -> list[Task]:
        todo: list[Task] = []
        wanted: set[str] = set()
        for task in reversed(tasks):
            # a trial that was stopped is no result: it is run again; so is one whose file for a later
            # trial has ended with the run that was stopped
            if self._known.get(task.key) in (None, Status.CANCELLED) or task.leaves in wanted:
                todo.append(task)
                wanted |= {task.reads} - {""}
        return todo[::-1]

    def _prepare(self, cases: list[Case]) -> dict[str, str]:
        preparation = Preparation(self._run.folder, self._suite, self._observer, self._site, self._stop)
        return preparation.run(list({case.id: case for case in cases}.values()))

    def _trials(self, todo: list[Task], unprepared: dict[str, str]) -> None:
        pace = Pace(todo)
        for done, task in enumerate(todo):
            if self._stop.asked:
                return
            self._observer.trial_started(task, done, len(todo), pace.remaining(done))
            began = time.monotonic()
            for candidate in task.candidates():
                record = self._attempt(candidate, unprepared)
                self._store(candidate, record)
                if record.status not in _TOO_LARGE:
                    break
            pace.took(task, time.monotonic() - began)
            self._observer.trial_ended(record)

    def _attempt(self, task: Task, unprepared: dict[str, str]) -> Record:
        if task.needs and (lacking := self._references.get(task.needs, "not run yet")):
            return self._unlaunched(task, Status.UNSUPPORTED, f"its reference has no result: {lacking}")
        if reason := _unprepared(task.case, self._run.folder, unprepared):
            return self._unlaunched(task, Status.PREPARE_FAILED, reason)
        return self._trial(task)

    def _store(self, task: Task, record: Record) -> None:
        self._run.write_record(record)
        self._remember(record)
        folder = self._run.trial_folder(task.case, task.round, task.job.kind)
        for rank in range(task.case.world_size):
            # the record holds all of it now, ten times smaller
            result_file(folder, rank).unlink(missing_ok=True)

    def _remember(self, record: Record) -> None:
        self._known[record.key] = record.status
        provided = reference_told(record.job)
        if provided and self._references.get(provided) != "":
            self._references[provided] = record.reason

    def _trial(self, task: Task) -> Record:
        launch = launch_for(self._run.folder, task)
        folder = launch.file.parent
        # a trial that was cut off leaves files that a new one must not take for its own
        shutil.rmtree(folder, ignore_errors=True)
        started, began, launched = utc_now(), time.monotonic(), time.time()
        try:
            folder.mkdir(parents=True)
            trial_file(self._info.run_id, self._run.folder, self._suite, task).write(launch.file)
        except OSError as error:
            raise unwritable(folder, error) from error
        try:
            handle = self._site.launch(launch)
        except LaunchError as error:
            ending = Ending(Status.CRASHED, str(error), Failure(rank=None, phase="start"))
            return self._shell(task, started, time.monotonic() - began).record(ending)
        watch = Watch(handle, folder, launch.processes, self._suite.limits, self._stop)
        metrics = self._of_job.get(task.job.kind, {})
        ending, sampled = self._sampled(task.case, watch, metrics)
        shell = self._shell(task, started, time.monotonic() - began, launched)
        return collect(shell, ending, folder, launch.processes, metrics, sampled)

    def _sampled(self, case: Case, watch: Watch, metrics: dict[str, Metric]) -> tuple[Ending, Tables]:
        """Return how the trial ended, and what the samplers of the metrics saw meanwhile."""
        samplers = {name: metric.sampler(case) for name, metric in metrics.items()}
        try:
            ending = watch.until_end()
        finally:
            rows = {name: sampler.stop() for name, sampler in samplers.items() if sampler}
        return ending, rows

    def _unlaunched(self, task: Task, status: Status, reason: str) -> Record:
        return self._shell(task, utc_now(), 0.0).record(Ending(status, reason))

    def _shell(self, task: Task, started: str, wall_s: float, launched: float = 0.0) -> Shell:
        return Shell(self._info.run_id, task.case, task.round, task.job, started, wall_s, launched)


def _unprepared(case: Case, folder: Path, failed: dict[str, str]) -> str | None:
    """Return why *case* can't be run after the preparation, or None."""
    items = ("preparation", f"strategy {case.label}", f"weights {weights_file(folder, case)}")
    return next((f"{item}: {failed[item]}" for item in items if item in failed), None)
