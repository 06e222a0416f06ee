"""The run of a suite whose cases are tests: each makes its own trials, when pytest comes to it."""

from __future__ import annotations

import dataclasses
import glob
import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from distbench import env, plan, store
from distbench.analysis.alarms import alarms
from distbench.analysis.summary import CaseSummary, summarise
from distbench.analysis.text import one_line
from distbench.case import Case
from distbench.plan import Task
from distbench.plan.equivalence import reference_told
from distbench.record import Record, Status, of_kind, round_text
from distbench.run import Bench, StopRequest
from distbench.spec import Suite
from distbench.store import Run, RunInfo

_log = logging.getLogger("distbench")


@dataclass(frozen=True)
class Made:
    """What came of a case."""

    suite: str
    run: Run
    run_id: str
    steps: int
    """Timed steps of a trial."""
    row: CaseSummary
    records: Sequence[Record]
    """Of its trials, and of those that they are held against."""
    alarms: Sequence[str]
    """In what it is not the training that it should be."""


class SuiteRun:
    """A run that is made case by case; ``distbench run --resume`` goes on with what it lacks.

    Raises:
        UsageError: the folder can't be made, or its disk is full.
    """

    def __init__(self, suite: Suite, cases: Sequence[Case], out: Path, command: list[str]) -> None:
        self._suite = _only(suite, cases)
        self._plan = plan.make(self._suite, env.detect(suite.device))
        self._info = RunInfo.begun(self._suite, self._plan.cases, command)
        self.run = Run.create(out, self._info, suite.text)
        self._stop = StopRequest()
        self._session = ExitStack()
        self._shared: dict[tuple[str, str, str, int], Record] = {}
        """Trials of this session that several cases are held against."""

    def open(self) -> None:
        """Begin a session: build what the trials need.

        Raises:
            InfrastructureError: the disk is full.
            KeyboardInterrupt: Ctrl-C or SIGTERM.
        """
        with self._listening():
            self._bench = self._session.enter_context(
                Bench.opened(self.run, self._suite, Logged(), self._stop)
            )
            impossible = [Task(item.case, problem=item.problem) for item in self._plan.cases if item.problem]
            for task in (*impossible, *self._plan.trials):
                if task.problem:
                    self._bench.refuse(task, task.problem)
            tasks = [task for task in self._plan.trials if not task.problem]
            self._bench.prepare([case for task in tasks for case in (task.case, *task.instead)])

    def make(self, case: Case) -> Made:
        """Make the trials of *case*, and of its references where that has not been done.

        Raises:
            InfrastructureError: the disk is full; what was stored is whole.
            KeyboardInterrupt: Ctrl-C or SIGTERM; the trial that it met is stored as cancelled.
        """
        records = []
        with self._listening():
            for task in self._tasks(case):
                if not self._stop.asked:
                    records.append(self._record(task))
        return self._told(case, records)

    def close(self) -> None:
        """End the session: no process of it is left, and the report is written.

        Raises:
            InfrastructureError: the disk is full.
        """
        self._session.close()
        self._shared.clear()
        state: store.State = "finished" if self._is_whole() else "interrupted"
        self.run.write_info(dataclasses.replace(self._info, state=state))
        from distbench.report import page

        page.write(self.run)

    def _is_whole(self) -> bool:
        made = {record.key: record.status for record in self.run.records()}
        return all(made.get(task.key, Status.CANCELLED) is not Status.CANCELLED for task in self._plan.trials)

    @contextmanager
    def _listening(self) -> Iterator[None]:
        """Let the first Ctrl-C end a trial in order, then have pytest stop."""
        with self._stop.listening():
            yield
        if self._stop.asked:
            raise KeyboardInterrupt

    def _tasks(self, case: Case) -> list[Task]:
        """Return what is made for *case*, what it is held against or goes on from first."""
        own = [task for task in self._plan.trials if _of(task) == case.id]
        references = {task.job.options.get("reference") for task in own}
        files = {task.reads for task in own} - {""}
        before = [
            task
            for task in self._plan.trials
            if (reference_told(task.job) or "no reference") in references or task.leaves in files
        ]
        mine = {task.key: task for task in (*before, *own)}
        return [task for task in mine.values() if not task.problem]

    def _record(self, task: Task) -> Record:
        if task.key in self._shared:
            return self._shared[task.key]
        _log.info("%s %s, %s", task.job.kind, one_line(task.case.name), round_text(task.round))
        record = self._bench.make(task)
        _log.info("%s %s", record.status, one_line(record.reason))
        if task.leaves or reference_told(task.job):
            self._shared[task.key] = record
        return record

    def _told(self, case: Case, records: Sequence[Record]) -> Made:
        planned = [item for item in self._plan.cases if item.case.id == case.id]
        others = [record for record in records if record.job.kind != "measure"]
        mine = [record for record in of_kind(records, "measure") if record.case_id == case.id]
        (row,) = summarise(dataclasses.replace(self._info, cases=planned), [*mine, *others])
        return Made(
            suite=self._suite.name,
            run=self.run,
            run_id=self._info.run_id,
            steps=self._suite.measure.steps,
            row=row,
            records=records,
            alarms=alarms([row], records),
        )


class Logged:
    """Gives what a run says to pytest's log (``--log-cli-level=INFO`` shows it meanwhile)."""

    def note(self, text: str) -> None:
        """Log it."""
        _log.info(one_line(text))

    def trial_started(self, task: Task, done: int, total: int, remaining_s: float | None) -> None:
        """pytest itself says which test runs."""

    def trial_ended(self, record: Record) -> None:
        """pytest itself says how a test ended."""


def _only(suite: Suite, cases: Sequence[Case]) -> Suite:
    """Return the suite of *cases* alone, one after another, as pytest makes them."""
    names = tuple(glob.escape(case.name) for case in cases)
    return dataclasses.replace(
        suite, only=names, measure=dataclasses.replace(suite.measure, order="sequential")
    )


def _of(task: Task) -> str:
    """Return the id of the case in whose test *task* is made; empty: of whichever comes first."""
    told = task.job.options
    if reference_told(task.job):
        return ""
    if told.get("role") == "back":
        # the reference of checkpoints goes on from what this case left
        return str(told["source_id"])
    return str(told.get("of", task.case.id))
