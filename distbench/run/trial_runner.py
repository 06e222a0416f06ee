"""Run one trial: launch, monitor, collect, store."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from distbench.core import registry
from distbench.core.case import Case
from distbench.core.errors import InfrastructureError
from distbench.core.job import job_kind
from distbench.core.measurement import TimeLimits
from distbench.core.units import format_count
from distbench.ipc.build_files import BuildFailure
from distbench.ipc.launch_spec import CURRENT_PYTHON, LaunchSpec, PythonTarget
from distbench.ipc.trial_files import partial_result_file, result_file
from distbench.launchers.base import (
    LaunchError,
    LaunchSession,
    LaunchUnsupportedError,
    NodesUnavailableError,
    RunningLaunch,
)
from distbench.metrics.base import Metric
from distbench.plan import Plan, PlannedTrial, check_launcher
from distbench.plan.time_limits import trial_limits
from distbench.record import NO_REFERENCE_TEXT, Failure, Record, Status
from distbench.record.record_reader import RECORD_FILE, damage_summary
from distbench.record.run_folder import Run, resumable_write_errors, utc_now
from distbench.record.verification import quarantine_trial
from distbench.run import internal_errors
from distbench.run.builds import (
    ALL_BUILDS,
    BuildRunner,
    cases_to_build,
    metric_build_name,
    missing_build,
)
from distbench.run.disk_space import DiskSpace
from distbench.run.interruption import StopRequest
from distbench.run.launch import nodes_unavailable_error, trial_instructions, trial_launch
from distbench.run.observer import Observer
from distbench.run.repeated_failures import RepeatedFailures
from distbench.run.results import SamplerResults, build_record, run_samplers
from distbench.run.trial_index import TrialIndex
from distbench.run.trial_monitor import TrialMonitor, TrialOutcome
from distbench.suite import Suite
from distbench.system import clock

_OUT_OF_MEMORY = (Status.OOM_GPU, Status.OOM_HOST)


class TrialRunner:
    """Runs trials in the folder of a run; each is on disk when ``run`` returns."""

    def __init__(
        self,
        run: Run,
        suite: Suite,
        observer: Observer,
        session: LaunchSession,
        stop: StopRequest,
        target: PythonTarget,
        index: TrialIndex,
        repeated: RepeatedFailures | None = None,
    ) -> None:
        self._run, self._run_id, self._suite, self._target = run, run.info().run_id, suite, target
        self._observer, self._session, self._stop = observer, session, stop
        self._index, self._repeated = index, repeated
        self._planned: list[PlannedTrial] = []
        self._disk_space = DiskSpace(run, lambda: len(index.pending(self._planned)))
        self._metrics: dict[str, Metric] = {
            choice.name: registry.create_plugin("metrics", choice) for choice in suite.metrics
        }
        self._failed_builds: dict[str, BuildFailure] = {}
        """Failure by name of the item that could not be built."""

    @classmethod
    @contextmanager
    def open(
        cls,
        run: Run,
        suite: Suite,
        observer: Observer,
        stop: StopRequest,
        target: PythonTarget = CURRENT_PYTHON,
        *,
        retry_failed: bool = False,
        repeated: RepeatedFailures | None = None,
    ) -> Iterator[TrialRunner]:
        """Start a session in the folder of *run*, which leaves no process behind.

        Args:
            retry_failed: Repeat trials of earlier sessions that failed, for whatever reason.
            repeated: Decides which trials would end as others did and are not launched; None: all are.

        Raises:
            RecordError: ``run.json`` can't be read.
            SuiteError: another process has to start the ranks.
        """
        check_launcher(suite)
        ledger = TrialIndex(run, retry_failed=retry_failed)
        site = registry.create_plugin("launchers", suite.launcher).open_session(run.info().run_id)
        try:
            yield cls(run, suite, observer, site, stop, target, ledger, repeated)
        finally:
            site.close()
            shutil.rmtree(run.folder / "scratch", ignore_errors=True)

    @property
    def machine(self) -> Mapping[str, Any] | None:
        """Facts of the machine that ranks run on; None if it is this one, or not known yet."""
        return self._session.machine

    def status(self, task: PlannedTrial) -> Status | None:
        """Status of *task* from this session or an earlier one; None if it has not run."""
        return self._index.status(task)

    def stored_record(self, task: PlannedTrial) -> Record | None:
        """Record of *task* from an earlier session; None if it is pending or damaged.

        Raises:
            RecordError: it can't be read any more.
        """
        return self._index.stored_record(task)

    def pending(self, tasks: Sequence[PlannedTrial]) -> list[PlannedTrial]:
        """Return those of *tasks* that are still to be made."""
        return self._index.pending(tasks)

    def build(self, cases: list[Case]) -> None:
        """Build what trials of *cases* need; without it they end as ``prepare_failed`` or unsupported."""
        if not cases:
            return
        preparation = BuildRunner(
            self._run.folder, self._suite, self._observer, self._session, self._stop, self._target
        )
        try:
            self._failed_builds |= preparation.run(list({case.id: case for case in cases}.values()))
        except InfrastructureError:
            raise
        except Exception as error:
            if internal_errors.is_disk_full(error):
                with resumable_write_errors(self._run.folder / "prepare"):
                    raise
            self._observer.note(f"preparation: {internal_errors.internal_error_reason(error)}")
            self._failed_builds[ALL_BUILDS] = BuildFailure(internal_errors.internal_error_reason(error))
        for item, failure in self._failed_builds.items():
            # no trial fails because of it, so no record states the reason
            if item.startswith(metric_build_name("")):
                self._observer.note(f"{item}: {failure.reason}")

    def restart_fork_servers(self) -> None:
        """Start the next trial from new processes, so that not all share one fork server's memory layout."""
        self._session.restart_fork_servers()

    def run(self, task: PlannedTrial, *, keep: bool = True) -> Record:
        """Run *task*, or its fallbacks when memory runs out; return the last record.

        A damaged trial in its place is moved away first; a failed one stays in the record as an attempt.

        Args:
            keep: Store the records; otherwise a measured trial leaves nothing.

        Raises:
            InfrastructureError: the disk is full, or nodes are missing; everything stored so far is intact.
        """
        for candidate in task.candidates():
            self._quarantine_damaged(candidate)
            self._disk_space.check_before(candidate)
            record = self._run_guarded(candidate)
            self._disk_space.check_after(candidate, record)
            if keep or record.status is not Status.MEASURED:
                record = self.store(candidate, record)
            else:
                shutil.rmtree(self._folder(candidate), ignore_errors=True)
            if record.status not in _OUT_OF_MEMORY:
                break
        return record

    def start_plan(self, plan: Plan) -> list[PlannedTrial]:
        """Prepare the pending trials of *plan*, and return them.

        Those that can't be launched here are stored as such. Damaged ones stay as they are.
        """
        self._planned = plan.trials
        self._index.mark_damaged_references(plan.trials)
        if text := damage_summary(list(self._index.damaged.values())):
            self._observer.note(
                f"{text}; distbench check RUN --repair moves it aside, so that it is measured again"
            )
        impossible = [PlannedTrial(item.case, problem=item.problem) for item in plan.cases if item.problem]
        for task in self._index.pending([*impossible, *plan.trials]):
            if task.problem:
                self.store(task, self._skipped_record(task, Status.UNSUPPORTED, task.problem))
        todo = self._index.pending(plan.trials)
        if failed := sum(map(self._index.has_failed, todo)):
            self._observer.note(f"retrying failed trials: {format_count(failed, 'trial')}")
        if todo:
            self.build(cases_to_build(todo))
        return todo

    def _quarantine_damaged(self, task: PlannedTrial) -> None:
        """Move damaged files of *task* out of its way."""
        if damaged := self._index.damaged.pop(self._folder(task), None):
            kept = quarantine_trial(self._run.folder, damaged.trial)
            self._observer.note(f"{damaged.trial}: damaged, moved to {kept}")

    def _run_guarded(self, task: PlannedTrial) -> Record:
        """Launch *task* if possible; an error that distbench itself raises becomes its outcome."""
        started, began = utc_now(), time.monotonic()
        try:
            return self._launch_or_skip(task)
        except InfrastructureError:
            raise
        except Exception as error:
            if internal_errors.is_disk_full(error):
                with resumable_write_errors(self._folder(task)):
                    raise
            # the process that the next trial would be forked from may be in any state
            with suppress(Exception):
                self._session.restart_fork_servers()
            return self._new_record(
                task, internal_errors.internal_error_outcome(error), started, time.monotonic() - began
            )

    def _launch_or_skip(self, task: PlannedTrial) -> Record:
        if self._repeated and (reason := self._repeated.skip_reason(task)):
            return self._skipped_record(task, Status.UNSUPPORTED, reason)
        if reason := self._index.missing_reference(task):
            return self._skipped_record(task, Status.UNSUPPORTED, f"{NO_REFERENCE_TEXT}: {reason}")
        if self._failed_builds and (missing := missing_build(self._failed_builds, task.case)):
            return self._skipped_record(task, *missing)
        return self._launch_and_monitor(task)

    def store(self, task: PlannedTrial, record: Record) -> Record:
        """Store *record*, or the failure to do so; return what is stored."""
        try:
            self._run.write_record(record)
        except Exception as error:
            if internal_errors.is_storage_error(error):
                raise
            # values from a plug-in can't be written
            ending = internal_errors.internal_error_outcome(error)
            record = self._new_record(task, ending, record.started, record.wall_s)
            self._run.write_record(record)
        self._index.add(record)
        if self._repeated:
            self._repeated.add(record)
        folder = self._folder(task)
        for rank in range(task.case.world_size):
            # the record now contains all of it in a tenth of the size
            result_file(folder, rank).unlink(missing_ok=True)
            partial_result_file(folder, rank).unlink(missing_ok=True)
        self._disk_space.record_usage(task, folder)
        return record

    def _folder(self, task: PlannedTrial) -> Path:
        return self._run.trial_folder(task.case, task.round, task.job.kind)

    def _launch_and_monitor(self, task: PlannedTrial) -> Record:
        folder, suite = self._run.folder, self._suite
        limits = trial_limits(suite.limits, task, suite.measure)
        spec = trial_launch(folder, suite, task, limits, self._target)
        self._clear_folder(task, spec.folder)
        started, began, launched = utc_now(), time.monotonic(), clock.now()
        with resumable_write_errors(spec.folder):
            trial_instructions(self._run_id, folder, suite, task, limits).write(spec.instructions)
        try:
            running = self._session.launch(spec, lambda: self._stop.stop_now)
        except LaunchUnsupportedError as error:
            return self._skipped_record(task, Status.UNSUPPORTED, str(error))
        except NodesUnavailableError as error:
            raise nodes_unavailable_error(error, folder) from error
        except LaunchError as error:
            outcome = TrialOutcome(Status.CRASHED, str(error), Failure(rank=None, phase="start"))
            if self._stop.stop_now:
                outcome = TrialOutcome(Status.CANCELLED, "stopped by a signal")
            return self._new_record(task, outcome, started, time.monotonic() - began)
        metrics = self._metrics if job_kind(task.job.kind).uses_metrics else {}
        outcome, sampled = self._monitor(task, spec, running, limits, metrics)
        outcome = outcome.with_node_name(running.ranks_by_node)
        ended = self._new_record(task, outcome, started, time.monotonic() - began)
        ended = replace(ended, nodes=dict(running.ranks_by_node))
        return build_record(ended, launched, spec.folder, spec.processes, metrics, sampled)

    def _monitor(
        self,
        task: PlannedTrial,
        spec: LaunchSpec,
        running: RunningLaunch,
        limits: TimeLimits,
        metrics: dict[str, Metric],
    ) -> tuple[TrialOutcome, SamplerResults]:
        """Outcome of the trial, and the results of the metrics' samplers on all nodes."""
        try:
            monitor = TrialMonitor(
                running,
                spec.folder,
                spec.processes,
                limits,
                self._stop,
                job_kind(task.job.kind),
                blame_by_stack=task.case.device == "cpu",
            )
            with run_samplers(task.case, metrics if self._session.is_local else {}) as sampled:
                outcome = monitor.wait()
            sampled.tables.update(running.sampler_tables())
            sampled.failed.update(running.failed_samplers())
        except BaseException:
            # it may not have been monitored yet
            running.stop()
            raise
        return outcome, sampled

    def _clear_folder(self, task: PlannedTrial, folder: Path) -> None:
        """Remove everything from *folder* that the trial of *task* could mistake for its own."""
        if not self._index.attempts(task):
            shutil.rmtree(folder, ignore_errors=True)
            with resumable_write_errors(folder):
                folder.mkdir(parents=True)
            return
        # its attempts stay known, even if this launch is killed
        self._run.write_record(self._skipped_record(task, Status.CANCELLED, "killed"))
        for entry in folder.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.name != RECORD_FILE:
                entry.unlink()

    def _skipped_record(self, task: PlannedTrial, status: Status, reason: str) -> Record:
        return self._new_record(task, TrialOutcome(status, reason), utc_now(), 0.0)

    def _new_record(self, task: PlannedTrial, outcome: TrialOutcome, started: str, wall_s: float) -> Record:
        return Record(
            run_id=self._run_id,
            case=task.case,
            case_id=task.case.id,
            round=task.round,
            job=task.job,
            started=started,
            wall_s=wall_s,
            attempts=self._index.attempts(task),
            **vars(outcome),
        )
