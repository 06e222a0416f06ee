"""Runs the trials of a plan one after another; each record is on disk before the next trial starts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from distbench.analysis.job_results import job_results
from distbench.core.errors import InfrastructureError
from distbench.core.job import MEASURE_JOB
from distbench.core.units import count_text
from distbench.plan import Plan, PlannedTrial, check_startable, make
from distbench.record.run_folder import Run, RunInfo, State
from distbench.record.submission import Request
from distbench.run.control import Observer, Pace, Stopped, StopRequest
from distbench.run.deadline import Deadline
from distbench.run.trial_runner import Bench, to_build
from distbench.run.user_errors import UserErrors
from distbench.suite import Suite, of_text
from distbench.suite.yaml_reader import read_text

More = Callable[[Run], Sequence[str]]
"""The run so far -> ids of the cases that are to be measured once more."""


@dataclass(frozen=True)
class Execution:
    """A run that has its folder and its plan."""

    run: Run
    info: RunInfo
    suite: Suite
    plan: Plan

    @classmethod
    def start(cls, suite: Suite, out: Path, command: Sequence[str]) -> Execution:
        """New run of *suite* in the folder *out*, which records the command line *command*.

        Raises:
            SuiteError: the suite can't be run here.
            UsageError: the folder can't be created, or its disk is full.
        """
        planned = make(suite)
        check_startable(suite)
        info = RunInfo.begun(suite, planned.cases, list(command))
        return cls(Run.create(out, info, suite.text), info, suite, planned)

    @classmethod
    def requested(cls, folder: Path, request: Request) -> Execution:
        """The run that *request* in *folder* asks for, which begins here.

        Raises:
            SuiteError: the suite can't be run here.
            UsageError: the folder is not writable, or its disk is full.
        """
        text = read_text(folder / "suite.yaml")
        suite = of_text(text, request.overrides(), file=request.file)
        planned = make(suite)
        begun = RunInfo.begun(suite, planned.cases, request.command)
        info = replace(begun, run_id=request.run_id)
        return cls(Run.made_at(folder, info, suite.text), info, suite, planned)

    def execute(self, observer: Observer, more: More | None = None, *, retry_failed: bool = False) -> Stopped:
        """Run what is missing; what stopped it, so that ``--resume`` can continue (empty: nothing did).

        No other process may run trials in the folder meanwhile.

        Args:
            more: Called when nothing is missing, again and again until it has no more cases: they get a trial
                each, in a round of their own.
            retry_failed: Make again what failed in earlier sessions, for whatever reason; without it only
                what the machine failed (no preparation, no start, no memory of the host).

        Raises:
            UsageError: another process runs trials in the folder.
            InfrastructureError: the disk is full, or nodes are missing; everything stored so far is intact.
            KeyboardInterrupt: a second Ctrl-C; no process of the run is left.
        """
        with self.run.owned() as killed, StopRequest().listening() as stop:
            if killed:
                observer.note(f"the last session was killed: {killed}")
            info = self._written(self.info, "running")
            try:
                with self._bench(observer, stop, retry_failed=retry_failed) as bench:
                    todo = bench.begin(self.plan)
                    if bench.machine:
                        info = self._written(replace(info, machine=dict(bench.machine)), "running")
                    self._make_all(bench, todo, observer, stop, more)
            except InfrastructureError:
                # where no more can be stored, not this either
                with suppress(InfrastructureError):
                    self._written(info, "interrupted")
                raise
            self._written(info, "interrupted" if stop.ends else "finished")
        return stop.by

    def _bench(
        self, observer: Observer, stop: StopRequest, *, retry_failed: bool
    ) -> AbstractContextManager[Bench]:
        # those of this session: the user may have corrected what failed in an earlier one
        errors = UserErrors()
        return Bench.opened(
            self.run, self.suite, observer, stop, retry_failed=retry_failed, user_errors=errors
        )

    def _make_all(
        self, bench: Bench, todo: list[PlannedTrial], observer: Observer, stop: StopRequest, more: More | None
    ) -> None:
        """Make what is still *todo*, and what that gives reason for."""
        ready, deadline = {task.case.id for task in todo}, Deadline()
        make_all(bench, todo, observer, stop, deadline)
        self._follow_up(bench, observer, stop, deadline)
        while more and not stop.ends and (cases := more(self.run)):
            added = self._round(cases)
            if new := [task.case for task in added if task.case.id not in ready]:
                bench.prepare(new)
                ready |= {case.id for case in new}
            make_all(bench, added, observer, stop, deadline)
            self._follow_up(bench, observer, stop, deadline)

    def _follow_up(self, bench: Bench, observer: Observer, stop: StopRequest, deadline: Deadline) -> None:
        """Make the trials that what was made so far gives reason for, until there is no reason for more."""
        tried: set[tuple[str, str, str, int]] = set()
        while not stop.ends:
            records = self.run.contents().records
            cases = [item.case for item in self.plan.cases if item.problem is None]
            asked = [
                task
                for results in job_results().values()
                if (section := self.suite.jobs.get(results.kind.name)) is not None
                for task in results.follow_up_trials(section, cases, records)
            ]
            todo = [task for task in bench.missing(asked) if task.key not in tried]
            if not todo:
                return
            tried |= {task.key for task in todo}
            words = ", ".join(dict.fromkeys(task.job.kind for task in todo))
            observer.note(f"following up what was measured: {count_text(len(todo), 'trial')} ({words})")
            bench.prepare(to_build(todo))
            make_all(bench, todo, observer, stop, deadline)

    def _written(self, info: RunInfo, state: State) -> RunInfo:
        """*info* with *state*, which ``run.json`` has now."""
        written = replace(info, state=state)
        self.run.write_info(written)
        return written

    def _round(self, case_ids: Sequence[str]) -> list[PlannedTrial]:
        """A trial of each of those cases, in a round that no case has had."""
        number = (
            max((record.round for record in self.run.records() if record.job == MEASURE_JOB), default=-1) + 1
        )
        chosen = [PlannedTrial(item.case, number) for item in self.plan.cases if item.case.id in case_ids]
        # every second round reversed, as planned ones are
        return chosen[::-1] if number % 2 else chosen


def make_all(
    bench: Bench, todo: list[PlannedTrial], observer: Observer, stop: StopRequest, deadline: Deadline
) -> None:
    """Make the trials *todo* one after another, until *stop* or *deadline* ends it."""
    pace = Pace(todo)
    for done, task in enumerate(todo):
        if deadline.ends(stop, observer, pace.longest(task)):
            return
        observer.trial_started(task, done, len(todo), pace.remaining(done))
        began = time.monotonic()
        record = bench.make(task)
        pace.took(task, time.monotonic() - began)
        observer.trial_ended(record)
