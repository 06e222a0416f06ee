"""Run the cases of a suite one by one as pytest tests."""

from __future__ import annotations

import dataclasses
import glob
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

from distbench.analysis.case_summary import CaseSummary
from distbench.analysis.run import RunAnalysis
from distbench.core.case import Case
from distbench.core.errors import EXIT_TIME_LIMIT
from distbench.core.job import MEASURE
from distbench.core.text import one_line
from distbench.plan import PlannedTrial
from distbench.record import Record, Status, records_of_kind, round_text, run_folder
from distbench.record.run_folder import Run, resume_command
from distbench.run import AllocationTimeLimit, Observer, RemainingTime, RunExecution, StopRequest, TrialRunner
from distbench.suite import Suite

_log = logging.getLogger("distbench")


@dataclass(frozen=True)
class CaseOutcome:
    """Result of a case."""

    suite: str
    run: Run
    run_id: str
    steps: int
    """Timed steps per trial."""
    row: CaseSummary
    records: Sequence[Record]
    """Records of its trials and of their references."""


class SuiteRun:
    """A run that proceeds case by case; ``distbench run --resume`` completes it.

    Raises:
        UsageError: the folder can't be created, or its disk is full.
    """

    def __init__(self, suite: Suite, cases: Sequence[Case], out: Path, command: list[str]) -> None:
        started = RunExecution.create(_restrict_suite(suite, cases), out, command)
        self.run, self._info, self._suite, self._plan = started.run, started.info, started.suite, started.plan
        self._stop = StopRequest()
        self._session = ExitStack()
        self._deadline, self._pace = AllocationTimeLimit(), RemainingTime(self._plan.trials)
        self._reference_records: dict[tuple[str, str, str, int], Record] = {}
        """Reference trials of this session, which several cases share."""

    def open(self) -> None:
        """Start a session: build what the trials need.

        Raises:
            UsageError: another process runs trials in the folder.
            InfrastructureError: the disk is full.
            KeyboardInterrupt: Ctrl-C or SIGTERM.
        """
        with self._handle_interrupt():
            # also between its tests, while others run
            self._session.enter_context(self._stop.handle_time_warning())
            self._session.enter_context(self.run.hold_lock())
            self.run.write_info(dataclasses.replace(self._info, state="running"))
            self._session.callback(self._write_end)
            self._bench = self._session.enter_context(
                TrialRunner.open(self.run, self._suite, LoggingObserver(), self._stop)
            )
            self._bench.start_plan(self._plan)

    def run_case(self, case: Case) -> CaseOutcome:
        """Run the trials of *case*, and those of its references if they haven't run yet.

        Raises:
            InfrastructureError: the disk is full; everything stored so far is intact.
            KeyboardInterrupt: Ctrl-C or SIGTERM; the interrupted trial is stored as cancelled.
            Exit: the time limit around pytest is too near for the trials that are still to be made.
        """
        tasks, records = self._tasks(case), []
        with self._handle_interrupt():
            for task in tasks:
                if self._deadline.should_stop(self._stop, LoggingObserver(), self._pace.longest(task)):
                    break
                records.append(self._record(task))
        if len(records) < len(tasks):
            exit_before_time_limit(self.run)
        return self._outcome(case, records)

    def close(self) -> None:
        """End the session: stop all its processes and write the report.

        Raises:
            InfrastructureError: the disk is full.
        """
        with self._stop.handle_time_warning():
            self._session.close()
            self._reference_records.clear()
            from distbench.report import page

            page.write(self.run.folder, RunAnalysis.read(self.run))

    def _write_end(self) -> None:
        state: run_folder.RunState = "finished" if self._is_complete() else "interrupted"
        self.run.write_info(dataclasses.replace(self._info, state=state))

    def _is_complete(self) -> bool:
        statuses = {record.key: record.status for record in self.run.records()}
        return all(
            statuses.get(task.key, Status.CANCELLED) is not Status.CANCELLED for task in self._plan.trials
        )

    @contextmanager
    def _handle_interrupt(self) -> Iterator[None]:
        """Let the first Ctrl-C end a trial cleanly, then stop pytest."""
        with self._stop.handle_signals():
            yield
        if self._stop.stop_now:
            raise KeyboardInterrupt

    def _tasks(self, case: Case) -> list[PlannedTrial]:
        """Tasks for *case*: first its references and those that leave files for it."""
        own = [task for task in self._plan.trials if _owning_case(task) == case.id]
        references = {task.job.options.reference for task in own}
        files = {task.input_file for task in own} - {""}
        before = [
            task
            for task in self._plan.trials
            if (task.job.provided_reference and task.job.provided_reference in references)
            or task.output_file in files
        ]
        tasks = {task.key: task for task in (*before, *own)}
        return [task for task in tasks.values() if not task.problem]

    def _record(self, task: PlannedTrial) -> Record:
        if task.key in self._reference_records:
            return self._reference_records[task.key]
        _log.info("%s %s, %s", task.job.kind, one_line(task.case.name), round_text(task.round))
        began = time.monotonic()
        record = self._bench.run(task)
        self._pace.add(task, time.monotonic() - began)
        _log.info("%s %s", record.status, one_line(record.reason))
        if task.output_file or task.job.provided_reference:
            self._reference_records[task.key] = record
        return record

    def _outcome(self, case: Case, records: Sequence[Record]) -> CaseOutcome:
        planned = [item for item in self._plan.cases if item.case.id == case.id]
        others = [record for record in records if record.job.kind != MEASURE]
        own = [record for record in records_of_kind(records, MEASURE) if record.case_id == case.id]
        (row,) = RunAnalysis(dataclasses.replace(self._info, cases=planned), [*own, *others]).cases
        return CaseOutcome(
            suite=self._suite.name,
            run=self.run,
            run_id=self._info.run_id,
            steps=self._suite.measure.steps,
            row=row,
            records=records,
        )


def exit_before_time_limit(run: Run) -> NoReturn:
    """End pytest, as the time limit around it is near and *run* is not complete.

    Raises:
        Exit: always; what has begun is ended in order.
    """
    why = "stopping: the time limit is near"
    pytest.exit(f"distbench: {why}; resume with: {resume_command(run.folder)}", returncode=EXIT_TIME_LIMIT)


class LoggingObserver(Observer):
    """Writes notes on a run to pytest's log (``--log-cli-level=INFO`` shows it live).

    The current test and its outcome are shown by pytest itself.
    """

    def note(self, text: str) -> None:
        """Log the note."""
        _log.info(one_line(text))


def _restrict_suite(suite: Suite, cases: Sequence[Case]) -> Suite:
    """Reduce *suite* to *cases*, one after another as pytest runs them."""
    names = tuple(glob.escape(case.name) for case in cases)
    measure = dataclasses.replace(suite.measure, order="sequential")
    return dataclasses.replace(suite.with_job(MEASURE, measure), only=names)


def _owning_case(task: PlannedTrial) -> str:
    """Id of the case in whose test *task* runs; empty: in the first test that needs it."""
    return "" if task.job.provided_reference else task.job.options.of or task.case.id
