"""Execute a run: lock its folder, build, then run trials and follow-ups one at a time.

Each record is on disk before the next trial starts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from distbench.analysis.job_results import job_results
from distbench.core.case import Case
from distbench.core.errors import InfrastructureError
from distbench.core.job import MEASURE_JOB
from distbench.core.units import format_count
from distbench.plan import Plan, PlannedTrial, check_launcher, make_plan
from distbench.record.run_folder import Run, RunInfo, RunState
from distbench.record.submission import RunRequest
from distbench.run.builds import cases_to_build
from distbench.run.interruption import AllocationTimeLimit, StopReason, StopRequest
from distbench.run.memory_fit import without_misfits
from distbench.run.observer import Observer, RemainingTime
from distbench.run.repeated_failures import RepeatedFailures
from distbench.run.trial_runner import TrialRunner
from distbench.suite import Suite, parse_suite_text
from distbench.suite.yaml_reader import read_suite_text

ExtraRounds = Callable[[Run], Sequence[str]]
"""Run so far -> ids of the cases to measure once more."""


@dataclass(frozen=True)
class RunExecution:
    """A run with its folder and its plan."""

    run: Run
    info: RunInfo
    suite: Suite
    plan: Plan

    @classmethod
    def create(cls, suite: Suite, out: Path, command: Sequence[str]) -> RunExecution:
        """Create a new run of *suite* in the folder *out*, which records the command line *command*.

        Raises:
            SuiteError: the suite can't be run here.
            UsageError: the folder can't be created, or its disk is full.
        """
        planned = make_plan(suite)
        check_launcher(suite)
        info = RunInfo.create(suite, planned.cases, list(command))
        return cls(Run.create(out, info, suite.text), info, suite, planned)

    @classmethod
    def from_request(
        cls, folder: Path, request: RunRequest, launcher_settings: Sequence[str] = ()
    ) -> RunExecution:
        """Start the run that *request* in *folder* describes.

        Args:
            launcher_settings: Overrides of the launcher, in the place of those that were requested.

        Raises:
            SuiteError: the suite can't be run here.
            UsageError: the folder is not writable, or its disk is full.
        """
        text = read_suite_text(folder / "suite.yaml")
        overrides = request.overrides(launcher_settings)
        suite = parse_suite_text(text, overrides, file=request.file)
        planned = make_plan(suite)
        begun = RunInfo.create(suite, planned.cases, request.command)
        info = replace(begun, run_id=request.run_id)
        return cls(Run.create_at(folder, info, suite.text), info, suite, planned)

    def without_timed_trials(self) -> RunExecution:
        """The same run, whose timed trials are only those that its extra rounds ask for."""
        trials = [task for task in self.plan.trials if task.job != MEASURE_JOB]
        return replace(self, plan=replace(self.plan, trials=trials))

    def execute(
        self, observer: Observer, extra_rounds: ExtraRounds | None = None, *, retry_failed: bool = False
    ) -> StopReason:
        """Run what is missing; return what stopped it (empty: nothing), for ``--resume`` to continue.

        No other process may run trials in the folder meanwhile.

        Args:
            extra_rounds: Called when nothing is missing, until it returns no more cases: each returned case
                gets one trial, in a new round.
            retry_failed: Repeat everything that failed in earlier sessions, for whatever reason; without it
                only failures of the machine (no preparation, no start, no memory of the host).

        Raises:
            UsageError: another process runs trials in the folder.
            InfrastructureError: the disk is full, or nodes are missing; everything stored so far is intact.
            KeyboardInterrupt: a second Ctrl-C; no process of the run is left.
        """
        with self.run.hold_lock() as killed, StopRequest().handle_signals() as stop:
            if killed:
                observer.note(f"the previous session was killed: {killed}")
            info = self._write_state(self.info, "running")
            try:
                with self._open_runner(observer, stop, retry_failed=retry_failed) as runner:
                    pending = {task.case.id for task in runner.pending(self.plan.trials)}
                    plan = without_misfits(self.suite, self.plan, pending, observer, lambda: stop.is_set)
                    fitting = replace(self, plan=plan)
                    todo = runner.start_plan(fitting.plan)
                    if runner.machine:
                        info = self._write_state(replace(info, machine=dict(runner.machine)), "running")
                    fitting._run_planned(runner, todo, observer, stop, extra_rounds)
            except InfrastructureError:
                # where nothing can be stored, neither can this
                with suppress(InfrastructureError):
                    self._write_state(info, "interrupted")
                raise
            self._write_state(info, "interrupted" if stop.is_set else "finished")
        return stop.reason

    def _open_runner(
        self, observer: Observer, stop: StopRequest, *, retry_failed: bool
    ) -> AbstractContextManager[TrialRunner]:
        # failures of this session only: the user may have fixed what failed in an earlier one
        repeated = RepeatedFailures()
        return TrialRunner.open(
            self.run, self.suite, observer, stop, retry_failed=retry_failed, repeated=repeated
        )

    def _run_planned(
        self,
        runner: TrialRunner,
        todo: list[PlannedTrial],
        observer: Observer,
        stop: StopRequest,
        extra_rounds: ExtraRounds | None,
    ) -> None:
        """Run the trials *todo*, their follow-ups, and extra rounds."""
        ready, time_limit = {task.case.id for task in todo}, AllocationTimeLimit()
        run_trials(runner, todo, observer, stop, time_limit)
        self._run_follow_ups(runner, observer, stop, time_limit)
        while extra_rounds and not stop.is_set and (cases := extra_rounds(self.run)):
            added = self._extra_round(cases)
            if new := [task.case for task in added if task.case.id not in ready]:
                runner.build(new)
                ready |= {case.id for case in new}
            run_trials(runner, added, observer, stop, time_limit)
            self._run_follow_ups(runner, observer, stop, time_limit)

    def _run_follow_ups(
        self, runner: TrialRunner, observer: Observer, stop: StopRequest, time_limit: AllocationTimeLimit
    ) -> None:
        """Run the follow-up trials that results so far call for, until there are no more."""
        cases = [item.case for item in self.plan.cases if item.problem is None]
        run_follow_ups(runner, self.suite.jobs, cases, self.run, observer, stop, time_limit)

    def _write_state(self, info: RunInfo, state: RunState) -> RunInfo:
        """Write *state* to ``run.json``; return *info* with it."""
        written = replace(info, state=state)
        self.run.write_info(written)
        return written

    def _extra_round(self, case_ids: Sequence[str]) -> list[PlannedTrial]:
        """One trial of each of these cases, in a new round."""
        number = (
            max((record.round for record in self.run.records() if record.job == MEASURE_JOB), default=-1) + 1
        )
        chosen = [PlannedTrial(item.case, number) for item in self.plan.cases if item.case.id in case_ids]
        # every second round is reversed, as planned ones are
        return chosen[::-1] if number % 2 else chosen


def run_trials(
    runner: TrialRunner,
    todo: list[PlannedTrial],
    observer: Observer,
    stop: StopRequest,
    time_limit: AllocationTimeLimit,
) -> None:
    """Run the trials *todo* one after another, until *stop* or *time_limit* ends it."""
    pace = RemainingTime(todo)
    for done, task in enumerate(todo):
        if time_limit.should_stop(stop, observer, pace.longest(task)):
            return
        observer.trial_started(task, done, len(todo), pace.remaining(done))
        began = time.monotonic()
        record = runner.run(task)
        pace.add(task, time.monotonic() - began)
        observer.trial_ended(record)


def run_follow_ups(
    runner: TrialRunner,
    jobs: Mapping[str, Any],
    cases: Sequence[Case],
    run: Run,
    observer: Observer,
    stop: StopRequest,
    time_limit: AllocationTimeLimit,
) -> None:
    """Run the follow-up trials that the results in *run* call for, until there are no more.

    Args:
        runner: Runner of the trials of *run*.
        jobs: Kind of job -> its section of the suite; other kinds have no follow-up trials.
        cases: Cases that may have them.
        run: Folder of the run.
        observer: What is told of them.
        stop: Ends after the trial in progress.
        time_limit: Ends before the allocation does.
    """
    tried: set[tuple[str, str, str, int]] = set()
    while not stop.is_set:
        records = run.contents().records
        follow_ups = [
            task
            for results in job_results().values()
            if (section := jobs.get(results.kind.name)) is not None
            for task in results.follow_up_trials(section, cases, records)
        ]
        todo = [task for task in runner.pending(follow_ups) if task.key not in tried]
        if not todo:
            return
        tried |= {task.key for task in todo}
        words = ", ".join(dict.fromkeys(task.job.kind for task in todo))
        observer.note(f"running follow-up trials: {format_count(len(todo), 'trial')} ({words})")
        runner.build(cases_to_build(todo))
        run_trials(runner, todo, observer, stop, time_limit)
