"""Where the trials of one run are made, one at a time: launched, watched, collected and stored."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from distbench import registry
from distbench.case import Case
from distbench.launchers.base import HERE, LaunchError, Place, Site
from distbench.metrics._checkpoint import CheckpointCosts
from distbench.metrics.base import Metric
from distbench.plan import Task
from distbench.plan.equivalence import reference_told
from distbench.record import Failure, Record, Status
from distbench.run.collect import Shell, Tables, collect
from distbench.run.launch import launch_for, trial_file, weights_file
from distbench.run.observer import Observer
from distbench.run.prepare import Preparation
from distbench.run.stop import StopRequest
from distbench.run.watch import Ending, Watch
from distbench.spec import Suite
from distbench.store import Run, unwritable, utc_now
from distbench.trial import result_file

_TOO_LARGE = (Status.OOM_GPU, Status.OOM_HOST)


class Bench:
    """Makes trials in the folder of a run; each is on the disk when ``make`` returns."""

    def __init__(
        self, run: Run, suite: Suite, observer: Observer, site: Site, stop: StopRequest, place: Place = HERE
    ) -> None:
        self._run, self._run_id, self._suite, self._place = run, run.info().run_id, suite, place
        self._observer, self._site, self._stop = observer, site, stop
        metrics: dict[str, Metric] = {
            choice.name: registry.make("metrics", choice) for choice in suite.metrics
        }
        self._of_job: dict[str, dict[str, Metric]] = {
            "measure": metrics,
            "checkpoint": {"checkpoint": CheckpointCosts()},
        }
        self._known: dict[tuple[str, str, str, int], Status] = {}
        self._unprepared: dict[str, str] = {}
        """What could not be built -> why."""
        self._references: dict[str, str] = {}
        """Id of a reference -> why it has no result; empty if it has one."""
        for record in run.records():
            self._remember(record)

    @classmethod
    @contextmanager
    def opened(
        cls, run: Run, suite: Suite, observer: Observer, stop: StopRequest, place: Place = HERE
    ) -> Iterator[Bench]:
        """Begin a session in the folder of *run*; at its end no process of it is left.

        Raises:
            RecordError: what the folder holds can't be read.
        """
        site = registry.make("launchers", suite.launcher).open(run.info().run_id)
        try:
            yield cls(run, suite, observer, site, stop, place)
        finally:
            site.close()
            shutil.rmtree(run.folder / "scratch", ignore_errors=True)

    def status(self, task: Task) -> Status | None:
        """Return how *task* ended, in this session or before; None if it has not been made."""
        return self._known.get(task.key)

    def found(self, task: Task) -> Record | None:
        """Return what an earlier session made of *task*; None if it made none, or was stopped in it.

        Raises:
            RecordError: it can't be read.
        """
        if self.status(task) in (None, Status.CANCELLED):
            return None
        return self._run.record(task.case, task.round, task.job.kind)

    def prepare(self, cases: list[Case]) -> None:
        """Build what trials of *cases* need; those for which that fails end as ``prepare_failed``."""
        preparation = Preparation(
            self._run.folder, self._suite, self._observer, self._site, self._stop, self._place
        )
        self._unprepared |= preparation.run(list({case.id: case for case in cases}.values()))

    def make(self, task: Task, *, keep: bool = True) -> Record:
        """Return the record of *task*, or of what was tried in its place when memory ran out.

        Args:
            keep: Store the records; without it a trial that was measured leaves nothing.

        Raises:
            InfrastructureError: the disk is full; what was stored is whole.
        """
        for candidate in task.candidates():
            record = self._attempt(candidate)
            if keep or record.status is not Status.MEASURED:
                self._store(candidate, record)
            else:
                shutil.rmtree(self._folder(candidate), ignore_errors=True)
            if record.status not in _TOO_LARGE:
                break
        return record

    def refuse(self, task: Task, reason: str) -> None:
        """Store that *task* can't be launched here."""
        self._store(task, self._unlaunched(task, Status.UNSUPPORTED, reason))

    def _attempt(self, task: Task) -> Record:
        if task.needs and (lacking := self._references.get(task.needs, "not run yet")):
            return self._unlaunched(task, Status.UNSUPPORTED, f"its reference has no result: {lacking}")
        if reason := self._lacks(task.case):
            return self._unlaunched(task, Status.PREPARE_FAILED, reason)
        return self._trial(task)

    def _lacks(self, case: Case) -> str | None:
        """Return what of *case* could not be built, or None."""
        items = ("preparation", f"strategy {case.label}", f"weights {weights_file(self._run.folder, case)}")
        failed = self._unprepared
        return next((f"{item}: {failed[item]}" for item in items if item in failed), None)

    def _store(self, task: Task, record: Record) -> None:
        self._run.write_record(record)
        self._remember(record)
        folder = self._folder(task)
        for rank in range(task.case.world_size):
            # the record holds all of it now, ten times smaller
            result_file(folder, rank).unlink(missing_ok=True)

    def _folder(self, task: Task) -> Path:
        return self._run.trial_folder(task.case, task.round, task.job.kind)

    def _remember(self, record: Record) -> None:
        self._known[record.key] = record.status
        provided = reference_told(record.job)
        if provided and self._references.get(provided) != "":
            self._references[provided] = record.reason

    def _trial(self, task: Task) -> Record:
        launch = launch_for(self._run.folder, task, self._place)
        folder = launch.file.parent
        # a trial that was cut off leaves files that a new one must not take for its own
        shutil.rmtree(folder, ignore_errors=True)
        started, began, launched = utc_now(), time.monotonic(), time.time()
        try:
            folder.mkdir(parents=True)
            trial_file(self._run_id, self._run.folder, self._suite, task).write(launch.file)
        except OSError as error:
            raise unwritable(folder, error) from error
        try:
            handle = self._site.launch(launch)
        except LaunchError as error:
            ending = Ending(Status.CRASHED, str(error), Failure(rank=None, phase="start"))
            return self._shell(task, started, time.monotonic() - began).record(ending)
        watch = Watch(handle, folder, launch.processes, self._suite.limits, self._stop)
        metrics = self._of_job.get(task.job.kind, {})
        ending, sampled = _sampled(task.case, watch, metrics)
        shell = self._shell(task, started, time.monotonic() - began, launched)
        return collect(shell, ending, folder, launch.processes, metrics, sampled)

    def _unlaunched(self, task: Task, status: Status, reason: str) -> Record:
        return self._shell(task, utc_now(), 0.0).record(Ending(status, reason))

    def _shell(self, task: Task, started: str, wall_s: float, launched: float = 0.0) -> Shell:
        return Shell(self._run_id, task.case, task.round, task.job, started, wall_s, launched)


def _sampled(case: Case, watch: Watch, metrics: dict[str, Metric]) -> tuple[Ending, Tables]:
    """Return how the trial ended, and what the samplers of the metrics saw meanwhile."""
    samplers = {name: metric.sampler(case) for name, metric in metrics.items()}
    try:
        ending = watch.until_end()
    finally:
        rows = {name: sampler.stop() for name, sampler in samplers.items() if sampler}
    return ending, rows
