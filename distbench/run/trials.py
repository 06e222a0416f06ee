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
from distbench.metrics.base import Metric
from distbench.plan import Plan
from distbench.record import Failure, Record, Status
from distbench.run.collect import Shell, Tables, collect
from distbench.run.launch import launch_for, trial_file, weights_file
from distbench.run.observer import Observer, Pace
from distbench.run.prepare import Preparation
from distbench.run.stop import StopRequest
from distbench.run.watch import Ending, Watch
from distbench.spec import Suite
from distbench.store import Run, RunInfo, unwritable, utc_now


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

    def run(self) -> Outcome:
        # a trial that was stopped is no result: it is run again
        known = {(r.case_id, r.round) for r in self._run.records() if r.status is not Status.CANCELLED}
        for item in self._plan.cases:
            if item.problem is not None and (item.case.id, 0) not in known:
                self._run.write_record(_unsupported(self._info.run_id, item.case, item.problem))
        todo = [(round_, case) for round_, case in self._plan.trials if (case.id, round_) not in known]
        if todo:
            self._trials(todo, self._prepare([case for _, case in todo]))
        return Outcome(interrupted=self._stop.asked)

    def _prepare(self, cases: list[Case]) -> dict[str, str]:
        preparation = Preparation(self._run.folder, self._suite, self._observer, self._site, self._stop)
        return preparation.run(list({case.id: case for case in cases}.values()))

    def _trials(self, todo: list[tuple[int, Case]], unprepared: dict[str, str]) -> None:
        pace = Pace(todo)
        for done, (round_, case) in enumerate(todo):
            if self._stop.asked:
                return
            self._observer.trial_started(case, round_, done, len(todo), pace.remaining(done))
            began = time.monotonic()
            if reason := _unprepared(case, self._run.folder, unprepared):
                ending = Ending(Status.PREPARE_FAILED, reason)
                record = Shell(self._info.run_id, case, round_, utc_now(), 0.0).record(ending)
            else:
                record = self._trial(case, round_)
            pace.took(case, time.monotonic() - began)
            self._run.write_record(record)
            self._observer.trial_ended(record)

    def _trial(self, case: Case, round_: int) -> Record:
        launch = launch_for(self._run.folder, case, round_)
        folder = launch.file.parent
        # a trial that was cut off leaves files that a new one must not take for its own
        shutil.rmtree(folder, ignore_errors=True)
        started, began, launched = utc_now(), time.monotonic(), time.time()
        try:
            folder.mkdir(parents=True)
            trial_file(self._info.run_id, self._run.folder, self._suite, case).write(launch.file)
        except OSError as error:
            raise unwritable(folder, error) from error
        try:
            handle = self._site.launch(launch)
        except LaunchError as error:
            ending = Ending(Status.CRASHED, str(error), Failure(rank=None, phase="start"))
            return Shell(self._info.run_id, case, round_, started, time.monotonic() - began).record(ending)
        watch = Watch(handle, folder, launch.processes, self._suite.limits, self._stop)
        ending, sampled = self._sampled(case, watch)
        shell = Shell(self._info.run_id, case, round_, started, time.monotonic() - began, launched)
        return collect(shell, ending, folder, launch.processes, self._metrics, sampled)

    def _sampled(self, case: Case, watch: Watch) -> tuple[Ending, Tables]:
        """Return how the trial ended, and what the samplers of the metrics saw meanwhile."""
        samplers = {name: metric.sampler(case) for name, metric in self._metrics.items()}
        try:
            ending = watch.until_end()
        finally:
            rows = {name: sampler.stop() for name, sampler in samplers.items() if sampler}
        return ending, rows


def _unsupported(run_id: str, case: Case, reason: str) -> Record:
    return Shell(run_id, case, 0, utc_now(), 0.0).record(Ending(Status.UNSUPPORTED, reason))


def _unprepared(case: Case, folder: Path, failed: dict[str, str]) -> str | None:
    """Return why *case* can't be run after the preparation, or None."""
    items = ("preparation", f"strategy {case.label}", f"weights {weights_file(folder, case)}")
    return next((f"{item}: {failed[item]}" for item in items if item in failed), None)
