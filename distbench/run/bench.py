"""Runs the trials of one run, one at a time: launches, watches, collects and stores them."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from distbench import registry
from distbench.case import Case
from distbench.job import kind_of
from distbench.launchers.base import HERE, LaunchError, Place, Site
from distbench.metrics.base import Metric
from distbench.plan import Plan, Task
from distbench.record import NO_REFERENCE, Failure, Record, Status
from distbench.record.contents import damage_text
from distbench.record.setting_aside import set_aside
from distbench.record.store import Run, storing, utc_now
from distbench.run.collect import Tables, collect
from distbench.run.control import Observer, StopRequest
from distbench.run.launch import launch_for, trial_file, weights_file
from distbench.run.prepare import Preparation
from distbench.run.watch import Ending, Watch
from distbench.suite import Suite
from distbench.trial import result_file

_TOO_LARGE = (Status.OOM_GPU, Status.OOM_HOST)
_NOT_RUN = (None, Status.CANCELLED)


class Bench:
    """Runs trials in the folder of a run; each is on disk when ``make`` returns."""

    def __init__(
        self, run: Run, suite: Suite, observer: Observer, site: Site, stop: StopRequest, place: Place = HERE
    ) -> None:
        self._run, self._run_id, self._suite, self._place = run, run.info().run_id, suite, place
        self._observer, self._site, self._stop = observer, site, stop
        self._metrics: dict[str, Metric] = {
            choice.name: registry.make("metrics", choice) for choice in suite.metrics
        }
        self._known: dict[tuple[str, str, str, int], Status] = {}
        self._unprepared: dict[str, str] = {}
        """Item that could not be built -> reason."""
        self._references: dict[str, str] = {}
        """Case id of a reference -> why it has no result; empty if it has one."""
        contents = run.contents()
        self._damaged = {run.folder / trial.trial: trial for trial in contents.damaged}
        for record in contents.records:
            self._remember(record)

    @classmethod
    @contextmanager
    def opened(
        cls, run: Run, suite: Suite, observer: Observer, stop: StopRequest, place: Place = HERE
    ) -> Iterator[Bench]:
        """Start a session in the folder of *run*, which leaves no process behind.

        Raises:
            RecordError: ``run.json`` can't be read.
        """
        site = registry.make("launchers", suite.launcher).open(run.info().run_id)
        try:
            yield cls(run, suite, observer, site, stop, place)
        finally:
            site.close()
            shutil.rmtree(run.folder / "scratch", ignore_errors=True)

    def status(self, task: Task) -> Status | None:
        """Status of *task* from this session or an earlier one; None if it has not run."""
        return self._known.get(task.key)

    def found(self, task: Task) -> Record | None:
        """Record of *task* from an earlier session; None if it has not run, was interrupted, or is damaged.

        Raises:
            RecordError: it can't be read.
        """
        if self.status(task) in _NOT_RUN:
            return None
        return self._run.record(task.case, task.round, task.job.kind)

    def prepare(self, cases: list[Case]) -> None:
        """Build what trials of *cases* need; if that fails, they end as ``prepare_failed``."""
        preparation = Preparation(
            self._run.folder, self._suite, self._observer, self._site, self._stop, self._place
        )
        self._unprepared |= preparation.run(list({case.id: case for case in cases}.values()))

    def renew(self) -> None:
        """Start the next trial from new processes: no warm parent's memory layout is in all of them."""
        self._site.renew()

    def make(self, task: Task, *, keep: bool = True) -> Record:
        """Run *task*, or its fallbacks when memory runs out; return the last record.

        A damaged trial in its place is set aside first.

        Args:
            keep: Store the records; otherwise a measured trial leaves nothing.

        Raises:
            InfrastructureError: the disk is full; everything stored so far is intact.
        """
        for candidate in task.candidates():
            self._set_aside(candidate)
            record = self._attempt(candidate)
            if keep or record.status is not Status.MEASURED:
                self._store(candidate, record)
            else:
                shutil.rmtree(self._folder(candidate), ignore_errors=True)
            if record.status not in _TOO_LARGE:
                break
        return record

    def begin(self, plan: Plan) -> list[Task]:
        """Prepare the trials of *plan* that are still to be made, and return them.

        Those that can't be launched here are stored as such. Damaged ones stay as they are.
        """
        self._tell_damage(plan)
        impossible = [Task(item.case, problem=item.problem) for item in plan.cases if item.problem]
        for task in self._missing([*impossible, *plan.trials]):
            if task.problem:
                self._store(task, self._unlaunched(task, Status.UNSUPPORTED, task.problem))
        todo = self._missing(plan.trials)
        if todo:
            self.prepare([case for task in todo for case in (task.case, *task.instead)])
        return todo

    def _missing(self, tasks: list[Task]) -> list[Task]:
        """Those *tasks* that have not run, or were interrupted, or whose file for a later one is gone."""
        todo: list[Task] = []
        wanted: set[str] = set()
        for task in reversed(tasks):
            if self._is_missing(task) or task.leaves in wanted:
                todo.append(task)
                wanted |= {task.reads} - {""}
        return todo[::-1]

    def _is_missing(self, task: Task) -> bool:
        return self.status(task) in _NOT_RUN and self._folder(task) not in self._damaged

    def _tell_damage(self, plan: Plan) -> None:
        """Say what is not measured again, and have trials that need the result of such a one say so, too."""
        if text := damage_text(list(self._damaged.values())):
            self._observer.note(f"{text}; distbench check RUN --repair sets it aside to be measured again")
        for task in plan.trials:
            if task.job.provides and self._folder(task) in self._damaged:
                self._references.setdefault(task.job.provides, "its trial is damaged")

    def _set_aside(self, task: Task) -> None:
        """Move what a damaged trial has left out of the way of *task*."""
        if damaged := self._damaged.pop(self._folder(task), None):
            kept = set_aside(self._run.folder, damaged.trial)
            self._observer.note(f"{damaged.trial}: was damaged and is set aside: {kept}")

    def _attempt(self, task: Task) -> Record:
        if task.needs and (reason := self._references.get(task.needs, "not run yet")):
            return self._unlaunched(task, Status.UNSUPPORTED, f"{NO_REFERENCE}: {reason}")
        if problem := self._preparation_problem(task.case):
            return self._unlaunched(task, Status.PREPARE_FAILED, problem)
        return self._trial(task)

    def _preparation_problem(self, case: Case) -> str | None:
        """What could not be built for *case*, or None."""
        items = ("preparation", f"strategy {case.label}", f"weights {weights_file(self._run.folder, case)}")
        failed = self._unprepared
        return next((f"{item}: {failed[item]}" for item in items if item in failed), None)

    def _store(self, task: Task, record: Record) -> None:
        self._run.write_record(record)
        self._remember(record)
        folder = self._folder(task)
        for rank in range(task.case.world_size):
            # the record now contains all of it in a tenth of the size
            result_file(folder, rank).unlink(missing_ok=True)

    def _folder(self, task: Task) -> Path:
        return self._run.trial_folder(task.case, task.round, task.job.kind)

    def _remember(self, record: Record) -> None:
        self._known[record.key] = record.status
        provided = record.job.provides
        if provided and self._references.get(provided) != "":
            self._references[provided] = record.reason

    def _trial(self, task: Task) -> Record:
        launch = launch_for(self._run.folder, self._suite, task, self._place)
        folder = launch.file.parent
        # a killed trial leaves files that the new one must not mistake for its own
        shutil.rmtree(folder, ignore_errors=True)
        started, began, launched = utc_now(), time.monotonic(), time.time()
        with storing(folder):
            folder.mkdir(parents=True)
            trial_file(self._run_id, self._run.folder, self._suite, task).write(launch.file)
        try:
            handle = self._site.launch(launch)
        except LaunchError as error:
            ending = Ending(Status.CRASHED, str(error), Failure(rank=None, phase="start"))
            return self._record(task, ending, started, time.monotonic() - began)
        kind = kind_of(task.job.kind)
        watch = Watch(handle, folder, launch.processes, self._suite.limits, self._stop, kind)
        metrics = self._metrics if kind.with_metrics else {}
        ending, sampled = _sampled(task.case, watch, metrics if self._site.is_here else {})
        ended = self._record(task, ending, started, time.monotonic() - began)
        return collect(ended, launched, folder, launch.processes, metrics, sampled)

    def _unlaunched(self, task: Task, status: Status, reason: str) -> Record:
        return self._record(task, Ending(status, reason), utc_now(), 0.0)

    def _record(self, task: Task, ending: Ending, started: str, wall_s: float) -> Record:
        return Record(
            run_id=self._run_id,
            case=task.case,
            case_id=task.case.id,
            round=task.round,
            job=task.job,
            started=started,
            wall_s=wall_s,
            **vars(ending),
        )


def _sampled(case: Case, watch: Watch, metrics: dict[str, Metric]) -> tuple[Ending, Tables]:
    """How the trial ended, and the rows of the metrics' samplers."""
    samplers = {name: metric.sampler(case) for name, metric in metrics.items()}
    try:
        ending = watch.until_end()
    finally:
        rows = {name: sampler.stop() for name, sampler in samplers.items() if sampler}
    return ending, rows
