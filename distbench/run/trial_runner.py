"""Runs the trials of one run, one at a time: launches, watches, collects and stores them."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from distbench.core import registry
from distbench.core.case import Case
from distbench.core.errors import InfrastructureError
from distbench.core.job import job_kind
from distbench.core.units import count_text
from distbench.ipc.build_files import Unbuilt
from distbench.ipc.trial_files import interim_file, result_file
from distbench.launchers.base import HERE, LaunchError, NodesMissingError, Place, Site, UnsupportedError
from distbench.metrics.base import Metric, Sampler, sampler_failure
from distbench.plan import Plan, PlannedTrial, check_startable
from distbench.plan.time_limits import limits_of
from distbench.record import NO_REFERENCE, Failure, Record, Status
from distbench.record.quarantine import set_aside
from distbench.record.reading import RECORD_FILE, damage_text
from distbench.record.run_folder import Run, storing, utc_now
from distbench.run import internal_errors
from distbench.run.builds import Preparation, item_text, metric_item, strategy_item, weights_item
from distbench.run.control import Observer, StopRequest
from distbench.run.disk_space import Room
from distbench.run.launch import launch_for, missing_nodes, trial_file
from distbench.run.results import SamplerResults, collect
from distbench.run.trial_index import Ledger
from distbench.run.trial_monitor import Ending, Watch
from distbench.run.user_errors import UserErrors
from distbench.suite import Suite
from distbench.system import clock

_TOO_LARGE = (Status.OOM_GPU, Status.OOM_HOST)


class Bench:
    """Runs trials in the folder of a run; each is on disk when ``make`` returns."""

    def __init__(
        self,
        run: Run,
        suite: Suite,
        observer: Observer,
        site: Site,
        stop: StopRequest,
        place: Place,
        ledger: Ledger,
        user_errors: UserErrors | None = None,
    ) -> None:
        self._run, self._run_id, self._suite, self._place = run, run.info().run_id, suite, place
        self._observer, self._site, self._stop = observer, site, stop
        self._ledger, self._user_errors = ledger, user_errors
        self._planned: list[PlannedTrial] = []
        self._room = Room(run, lambda: len(ledger.missing(self._planned)))
        self._metrics: dict[str, Metric] = {
            choice.name: registry.make("metrics", choice) for choice in suite.metrics
        }
        self._unprepared: dict[str, Unbuilt] = {}
        """By the items that could not be built."""

    @classmethod
    @contextmanager
    def opened(
        cls,
        run: Run,
        suite: Suite,
        observer: Observer,
        stop: StopRequest,
        place: Place = HERE,
        *,
        retry_failed: bool = False,
        user_errors: UserErrors | None = None,
    ) -> Iterator[Bench]:
        """Start a session in the folder of *run*, which leaves no process behind.

        Args:
            retry_failed: Make trials of earlier sessions again that failed for whatever reason.
            user_errors: Decides which trials would repeat an error of the user's model and are not launched;
                None: all are.

        Raises:
            RecordError: ``run.json`` can't be read.
            SuiteError: another process has to start the ranks.
        """
        check_startable(suite)
        ledger = Ledger(run, retry_failed=retry_failed)
        site = registry.make("launchers", suite.launcher).open(run.info().run_id)
        try:
            yield cls(run, suite, observer, site, stop, place, ledger, user_errors)
        finally:
            site.close()
            shutil.rmtree(run.folder / "scratch", ignore_errors=True)

    @property
    def machine(self) -> Mapping[str, Any] | None:
        """Facts of the machine that ranks run on, where that is not this one and is known already."""
        return self._site.machine

    def status(self, task: PlannedTrial) -> Status | None:
        """Status of *task* from this session or an earlier one; None if it has not run."""
        return self._ledger.status(task)

    def found(self, task: PlannedTrial) -> Record | None:
        """Record of *task* from an earlier session; None if it is still to be made, or damaged.

        Raises:
            RecordError: it can't be read any more.
        """
        return self._ledger.found(task)

    def missing(self, tasks: Sequence[PlannedTrial]) -> list[PlannedTrial]:
        """Those *tasks* that are still to be made."""
        return self._ledger.missing(tasks)

    def prepare(self, cases: list[Case]) -> None:
        """Build what trials of *cases* need; without it they end as ``prepare_failed``, or unsupported."""
        if not cases:
            return
        preparation = Preparation(
            self._run.folder, self._suite, self._observer, self._site, self._stop, self._place
        )
        try:
            self._unprepared |= preparation.run(list({case.id: case for case in cases}.values()))
        except InfrastructureError:
            raise
        except Exception as error:
            if internal_errors.is_full(error):
                with storing(self._run.folder / "prepare"):
                    raise
            self._observer.note(f"preparation: {internal_errors.reason_of(error)}")
            self._unprepared["preparation"] = Unbuilt(internal_errors.reason_of(error))
        for item, failure in self._unprepared.items():
            # no trial fails for it, so no record of one says why
            if item.startswith(metric_item("")):
                self._observer.note(f"{item}: {failure.reason}")

    def renew(self) -> None:
        """Start the next trial from new processes: no warm parent's memory layout is in all of them."""
        self._site.renew()

    def make(self, task: PlannedTrial, *, keep: bool = True) -> Record:
        """Run *task*, or its fallbacks when memory runs out; return the last record.

        A damaged trial in its place is set aside first; a failed one stays in the record as an attempt.

        Args:
            keep: Store the records; otherwise a measured trial leaves nothing.

        Raises:
            InfrastructureError: the disk is full, or nodes are missing; everything stored so far is intact.
        """
        for candidate in task.candidates():
            self._set_aside(candidate)
            self._room.check(candidate)
            record = self._attempt(candidate)
            self._room.check_ended(candidate, record)
            if keep or record.status is not Status.MEASURED:
                record = self._store(candidate, record)
            else:
                shutil.rmtree(self._folder(candidate), ignore_errors=True)
            if record.status not in _TOO_LARGE:
                break
        return record

    def begin(self, plan: Plan) -> list[PlannedTrial]:
        """Prepare the trials of *plan* that are still to be made, and return them.

        Those that can't be launched here are stored as such. Damaged ones stay as they are.
        """
        self._planned = plan.trials
        self._ledger.expect(plan.trials)
        if text := damage_text(list(self._ledger.damaged.values())):
            self._observer.note(f"{text}; distbench check RUN --repair sets it aside to be measured again")
        impossible = [PlannedTrial(item.case, problem=item.problem) for item in plan.cases if item.problem]
        for task in self._ledger.missing([*impossible, *plan.trials]):
            if task.problem:
                self._store(task, self._unlaunched(task, Status.UNSUPPORTED, task.problem))
        todo = self._ledger.missing(plan.trials)
        if failed := sum(map(self._ledger.has_failed, todo)):
            self._observer.note(f"trying again what failed before: {count_text(failed, 'trial')}")
        if todo:
            self.prepare(to_build(todo))
        return todo

    def _set_aside(self, task: PlannedTrial) -> None:
        """Move what a damaged trial has left out of the way of *task*."""
        if damaged := self._ledger.damaged.pop(self._folder(task), None):
            kept = set_aside(self._run.folder, damaged.trial)
            self._observer.note(f"{damaged.trial}: was damaged and is set aside: {kept}")

    def _attempt(self, task: PlannedTrial) -> Record:
        """Launch *task* if it can be; what distbench itself raises meanwhile is how it ended."""
        started, began = utc_now(), time.monotonic()
        try:
            return self._launched(task)
        except InfrastructureError:
            raise
        except Exception as error:
            if internal_errors.is_full(error):
                with storing(self._folder(task)):
                    raise
            # whatever the next trial would be forked from may be in any state
            with suppress(Exception):
                self._site.renew()
            return self._record(task, internal_errors.ending_of(error), started, time.monotonic() - began)

    def _launched(self, task: PlannedTrial) -> Record:
        if self._user_errors and (reason := self._user_errors.why_not(task)):
            return self._unlaunched(task, Status.UNSUPPORTED, reason)
        if reason := self._ledger.why_not(task):
            return self._unlaunched(task, Status.UNSUPPORTED, f"{NO_REFERENCE}: {reason}")
        for item in ("preparation", strategy_item(task.case), weights_item(task.case)):
            if failure := self._unprepared.get(item):
                return self._unlaunched(task, *_status_without(item, failure))
        return self._trial(task)

    def _store(self, task: PlannedTrial, record: Record) -> Record:
        """Store *record*, or how that failed; return what is stored."""
        try:
            self._run.write_record(record)
        except Exception as error:
            if internal_errors.is_of_the_machine(error):
                raise
            # what a plug-in gave can't be written
            ending = internal_errors.ending_of(error)
            record = self._record(task, ending, record.started, record.wall_s)
            self._run.write_record(record)
        self._ledger.remember(record)
        if self._user_errors:
            self._user_errors.remember(record)
        folder = self._folder(task)
        for rank in range(task.case.world_size):
            # the record now contains all of it in a tenth of the size
            result_file(folder, rank).unlink(missing_ok=True)
            interim_file(folder, rank).unlink(missing_ok=True)
        self._room.took(task, folder)
        return record

    def _folder(self, task: PlannedTrial) -> Path:
        return self._run.trial_folder(task.case, task.round, task.job.kind)

    def _trial(self, task: PlannedTrial) -> Record:
        launch = launch_for(self._run.folder, self._suite, task, self._place, self._stop)
        folder = launch.file.parent
        self._clear(task, folder)
        started, began, launched = utc_now(), time.monotonic(), clock.now()
        with storing(folder):
            trial_file(self._run_id, self._run.folder, self._suite, task).write(launch.file)
        try:
            handle = self._site.launch(launch)
        except UnsupportedError as error:
            return self._unlaunched(task, Status.UNSUPPORTED, str(error))
        except NodesMissingError as error:
            raise missing_nodes(error, self._run.folder) from error
        except LaunchError as error:
            ending = Ending(Status.CRASHED, str(error), Failure(rank=None, phase="start"))
            if self._stop.asked:
                ending = Ending(Status.CANCELLED, "stopped by a signal")
            return self._record(task, ending, started, time.monotonic() - began)
        kind = job_kind(task.job.kind)
        metrics = self._metrics if kind.with_metrics else {}
        try:
            watch = Watch(
                handle,
                folder,
                launch.processes,
                limits_of(self._suite.limits, task, self._suite.measure),
                self._stop,
                kind,
                stacks_tell=task.case.device == "cpu",
            )
            ending, sampled = _sampled(task.case, watch, metrics if self._site.is_here else {})
            sampled.tables.update(handle.samples())
            sampled.failed.update(handle.unsampled())
        except BaseException:
            # nobody may have begun to watch it
            handle.stop()
            raise
        ending = ending.on(handle.nodes)
        ended = self._record(task, ending, started, time.monotonic() - began)
        ended = replace(ended, nodes=dict(handle.nodes))
        return collect(ended, launched, folder, launch.processes, metrics, sampled)

    def _clear(self, task: PlannedTrial, folder: Path) -> None:
        """Leave nothing in *folder* that the trial of *task* could mistake for its own."""
        if not self._ledger.attempts(task):
            shutil.rmtree(folder, ignore_errors=True)
            with storing(folder):
                folder.mkdir(parents=True)
            return
        # its attempts stay known, even if this launch is killed
        self._run.write_record(self._unlaunched(task, Status.CANCELLED, "killed"))
        for entry in folder.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.name != RECORD_FILE:
                entry.unlink()

    def _unlaunched(self, task: PlannedTrial, status: Status, reason: str) -> Record:
        return self._record(task, Ending(status, reason), utc_now(), 0.0)

    def _record(self, task: PlannedTrial, ending: Ending, started: str, wall_s: float) -> Record:
        return Record(
            run_id=self._run_id,
            case=task.case,
            case_id=task.case.id,
            round=task.round,
            job=task.job,
            started=started,
            wall_s=wall_s,
            attempts=self._ledger.attempts(task),
            **vars(ending),
        )


def to_build(tasks: Sequence[PlannedTrial]) -> list[Case]:
    """Cases for which something has to be built before *tasks* are made."""
    training = [task for task in tasks if job_kind(task.job.kind).trains]
    return [case for task in training for case in (task.case, *task.instead)]


def _sampled(case: Case, watch: Watch, metrics: dict[str, Metric]) -> tuple[Ending, SamplerResults]:
    """How the trial ended, and what the metrics' samplers gave here."""
    sampled = SamplerResults({}, {})
    with ExitStack() as sampling:
        for name, metric in metrics.items():
            if sampler := metric.sampler(case):
                sampling.callback(_stop, sampler, name, sampled)
        ending = watch.until_end()
    return ending, sampled


def _stop(sampler: Sampler, name: str, sampled: SamplerResults) -> None:
    try:
        sampled.tables[name] = sampler.stop()
    except Exception as error:
        # whatever a plug-in or a driver's library raises costs its own numbers alone
        sampled.failed[name] = sampler_failure(name, error)


def _status_without(item: str, failure: Unbuilt) -> tuple[Status, str]:
    """How a trial ends that needs *item*, which could not be built."""
    if failure.refused:
        return Status.UNSUPPORTED, failure.reason
    # on one line: the last of an exception's is often the reason
    return Status.PREPARE_FAILED, f"{item_text(item)}: {' '.join(failure.reason.split())}"
