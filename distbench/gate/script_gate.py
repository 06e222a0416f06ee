"""Gate a script: two versions of it side by side, with the statistics and rules of a suite's gate."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from distbench.analysis.run import RunAnalysis
from distbench.analysis.settings import fact_differences, merge_environments
from distbench.core.errors import UsageError
from distbench.gate import launch_failures
from distbench.gate.arms import check_out, checkout_place
from distbench.gate.case_verdict import case_verdict, track_findings
from distbench.gate.launch_failures import FailureLog
from distbench.gate.series import CaseSlot, CaseTrack, GateTimer, PairSeries
from distbench.gate.verdicts import GateResult, is_flagged
from distbench.ipc.launch_spec import CURRENT_PYTHON, PythonTarget
from distbench.plan import PlannedTrial
from distbench.record import SECOND_SERIES_START, WARMUP_ROUND, Record, Status
from distbench.record.record_reader import retry_eagerly
from distbench.record.run_folder import Run, RunState, folder_stamp, new_run_id, utc_now, write_json
from distbench.run import Observer, StopRequest
from distbench.run.scripts.measurement import (
    ScriptLauncher,
    ScriptPlan,
    build_memory_counter,
    run_info,
    suite_text,
)
from distbench.suite.gate import GateRules
from distbench.system.interpreters import find_python, make_python_path
from distbench.system.temporary import temporary_folder


@dataclass(frozen=True)
class ScriptArm:
    """One version of a script: where its command starts."""

    title: str
    place: PythonTarget = CURRENT_PYTHON


@contextmanager
def script_arms(
    command: Sequence[str], baseline: str, *, self_test: bool
) -> Iterator[tuple[ScriptArm, ScriptArm]]:
    """Baseline and candidate: the same *command* in files of a revision, or with another Python, and here.

    Raises:
        UsageError: there is no such revision or environment, or the command names a file of this repository
            by its absolute path, so that both arms would run it.
    """
    candidate = ScriptArm("the script here")
    if self_test:
        yield ScriptArm("the same"), candidate
        return
    if python := find_python(Path(baseline)):
        path = os.pathsep.join([str(python.parent), os.environ.get("PATH", "")])
        variables = {"PATH": path, "PYTHONPATH": make_python_path(), "VIRTUAL_ENV": str(python.parent.parent)}
        yield ScriptArm(baseline, PythonTarget(str(python), None, variables)), candidate
        return
    with temporary_folder() as folder:
        checkout = check_out(baseline, folder)
        for word in command:
            if Path(word).is_absolute() and Path(word).is_relative_to(checkout.root):
                raise UsageError(
                    f"gate: {word} is a file here, so both arms would run it; name it relative to this folder"
                )
        yield ScriptArm(checkout.title, checkout_place(baseline, checkout.tree, checkout.root)), candidate


@dataclass
class ScriptBench:
    """Launches of one arm."""

    launcher: ScriptLauncher
    _first: Record | None = field(default=None, init=False)

    def first_launch(self) -> Record:
        """Launch the script for its case; that launch is the warm-up of the arm.

        Raises:
            UsageError: no step of it could be timed.
        """
        _, self._first = self.launcher.launch(WARMUP_ROUND)
        return self._first

    def stored_record(self, task: PlannedTrial) -> Record | None:
        """None: the gate of a script is not resumed."""
        return None

    def run(self, task: PlannedTrial, *, keep: bool = True) -> Record:
        """Launch the script; a launch of which no step could be timed is a crash."""
        if not keep and self._first is not None:
            first, self._first = self._first, None
            return first
        started = utc_now()
        try:
            _, record = self.launcher.launch(task.round)
        except UsageError as error:
            reason = str(error)
            record = Record(
                run_id=self.launcher.run.info().run_id,
                case=task.case,
                case_id=task.case.id,
                round=task.round,
                status=Status.CRASHED,
                reason=reason,
                started=started,
                wall_s=0.0,
            )
        # its version decides the case, which a launch may tell otherwise: samples of another batch
        record = replace(record, case=task.case, case_id=task.case.id)
        return self.store(task, record) if keep else record

    def store(self, task: PlannedTrial, record: Record) -> Record:
        """Store *record*."""
        self.launcher.store(record)
        return record

    def restart_fork_servers(self) -> None:
        """Nothing to do: each launch is a new process."""


class ScriptGate:
    """A gate of two versions of a script."""

    def __init__(
        self,
        plan: ScriptPlan,
        arms: tuple[ScriptArm, ScriptArm],
        rules: GateRules,
        out: Path,
        words: Sequence[str],
    ) -> None:
        """Create the folder of the gate below *out*, whose runs record the command line *words*.

        Raises:
            UsageError: it can't be created.
        """
        self._plan, self._arms, self._rules = plan, arms, rules
        self._path = (out / f"gate-{folder_stamp(utc_now())}-{new_run_id()}").resolve()
        infos = [run_info(plan, words) for _ in arms]
        names = ("baseline", "candidate")
        self._runs = [
            Run.create_at(self._path / name, info, suite_text(words))
            for name, info in zip(names, infos, strict=True)
        ]
        titles = {name: arm.title for name, arm in zip(names, arms, strict=True)}
        write_json(self._path / "arms.json", titles)

    def run(self, observer: Observer) -> GateResult:
        """Run both arms in turn until there is a verdict, and write it to the folder.

        Raises:
            UsageError: no step of an arm could be timed.
            InfrastructureError: the disk is full; everything stored so far is intact.
        """
        build_memory_counter(observer.note)
        stop, timer = StopRequest(), GateTimer(self._rules.minutes)
        second: CaseTrack | None = None
        with stop.handle_signals(), self._runs[0].hold_lock(), self._runs[1].hold_lock():
            benches = self._benches(stop, observer)
            try:
                slot = CaseSlot(*(bench.first_launch().case for bench in benches))
            except UsageError:
                # nothing was measured
                shutil.rmtree(self._path, ignore_errors=True)
                raise
            first = self._series(benches, slot, stop, observer, timer, is_second=False)
            is_doubted = any(map(is_flagged, track_findings(first, self._rules)))
            if is_doubted and not (stop.is_set or timer.has_expired):
                observer.note("flagged; a fresh series will confirm or clear it")
                second = self._series(benches, slot, stop, observer, timer, is_second=True)
            state: RunState = "interrupted" if stop.is_set else "finished"
            for run in self._runs:
                shutil.rmtree(run.folder / "scratch", ignore_errors=True)
                run.write_info(replace(run.info(), state=state))
        result = retry_eagerly(partial(self._result, first, second, timer, stop))
        write_json(self._path / "gate.json", result.to_json())
        return result

    def _benches(self, stop: StopRequest, observer: Observer) -> tuple[ScriptBench, ScriptBench]:
        baseline, candidate = (
            ScriptBench(ScriptLauncher(run, self._plan, stop, lambda _: None, arm.place))
            for run, arm in zip(self._runs, self._arms, strict=True)
        )
        return baseline, candidate

    def _series(
        self,
        benches: tuple[ScriptBench, ScriptBench],
        slot: CaseSlot,
        stop: StopRequest,
        observer: Observer,
        timer: GateTimer,
        *,
        is_second: bool,
    ) -> CaseTrack:
        track = CaseTrack(slot)
        series = PairSeries(benches, self._rules, observer, stop, timer, FailureLog(), unread_changes=None)
        first_round = SECOND_SERIES_START if is_second else 0
        series.run([[track]], first_round=first_round, candidate_first=is_second)
        return track

    def _result(
        self, first: CaseTrack, second: CaseTrack | None, timer: GateTimer, stop: StopRequest
    ) -> GateResult:
        runs = [RunAnalysis.read(run) for run in self._runs]
        facts = [merge_environments(run.records, run.info.machine) for run in runs]
        before, after = ({row.case.id: row for row in run.cases} for run in runs)
        name = first.slot.candidate.name
        launches = first.launches
        if second is not None:
            launches = launches[0] + second.launches[0], launches[1] + second.launches[1]
        verdict = case_verdict(
            first,
            second,
            (before, after),
            self._rules,
            launches=launch_failures.launch_findings({name: launches}).get(name),
            confirms=True,
        )
        return GateResult(
            gate_id=self._path.name.rpartition("-")[2],
            suite=runs[1].info.suite_name,
            baseline=self._arms[0].title,
            candidate=self._arms[1].title,
            cases=(verdict,),
            environment=fact_differences(*facts),
            minutes=round(timer.elapsed_minutes, 2),
            stopped=stop.reason,
            folder=str(self._path),
        )
