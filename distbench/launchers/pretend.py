"""``pretend``: starts no process; every rank reports at once what the options say."""

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distbench.core.errors import UnsupportedCase
from distbench.core.job import MEASURE, job_kind
from distbench.ipc.build_files import BuildEvent, append_event, read_items
from distbench.ipc.launch_spec import LaunchSpec
from distbench.ipc.messages import RankExit
from distbench.ipc.trial_files import RankError, TrialInstructions, log_file, result_file
from distbench.launchers.base import CancelCheck, Launcher, LaunchSession, RunningLaunch, never_cancelled
from distbench.system import clock

PRETENDED_STRATEGY = "pretended"
"""Name of a plug-in strategy for cases that are openly pretended, so that their trials need no mark; it may
have an option ``does``: works, raises or hangs."""

_RESULT_DEFAULTS: dict[str, Any] = {
    "absent": {},
    "began": 0.0,
    "code": "",
    "effective": {"parameters": 1},
    "environment": {"pretended": True},
    "not_finite": None,
    "tables": {},
    "warmup_losses": [],
    "window": [0.0, 1.0],
}


@dataclass(frozen=True)
class Pretend(Launcher):
    """Starts no process and makes up what ranks would measure, to try a suite, its gate and its reports.

    Its trials are marked as degraded, so that nothing compares or recommends them, and every record has
    ``environment.pretended``. Trials of a plug-in strategy called ``pretended`` are not: its name tells.
    """

    step_s: float = 0.1
    """Seconds per step in the first trial of a case; each of the next nine takes 1% more, then it repeats."""
    values: dict[str, float] = field(default_factory=dict)
    """Column of a metric or of a kind of job, such as memory_peak, and what every rank reports for it. A
    kind of job other than measure is refused unless all of its columns are here."""
    log: str = ""
    """File that gets a line for each session, preparation and trial; empty: none."""

    def commands(self, spec: LaunchSpec) -> list[list[str]]:
        return []

    def open_session(self, run_id: str) -> LaunchSession:
        self.log_event("open")
        return _PretendSession(self)

    def log_event(self, event: str) -> None:
        """Append *event* to the log, if there is one."""
        if self.log:
            with Path(self.log).open("a") as stream:
                stream.write(f"{event}\n")


class _PretendSession(LaunchSession):
    is_local = False

    def __init__(self, options: Pretend) -> None:
        self._options = options

    def launch(self, spec: LaunchSpec, is_cancelled: CancelCheck = never_cancelled) -> RunningLaunch:
        if spec.command == "prepare":
            self._options.log_event("prepare")
            for item in read_items(spec.instructions):
                append_event(spec.instructions, BuildEvent(item.name, ended=True))
            return _FinishedLaunch(1)
        trial = TrialInstructions.read(spec.instructions)
        folder, does = spec.folder, trial.case.strategy.options.get("does", "works")
        self._options.log_event(f"trial {trial.case.label} {folder.name}")
        columns = {column.name for column in job_kind(trial.job.kind).columns}
        knows = trial.job.kind == MEASURE or (columns and columns <= self._options.values.keys())
        for rank in range(spec.processes):
            # as frameworks do: code that shows a log or a message has to remove the colours
            log_file(folder, rank).write_text(f"rank {rank} was \x1b[32mhere\n")
            if not knows:
                _write_error(
                    folder,
                    rank,
                    UnsupportedCase.__name__,
                    f"launcher pretend does not support {trial.job.kind}",
                )
            elif rank and does == "raises":
                _write_error(folder, rank, "RuntimeError", "a pretended \x1b[31mfailure")
            elif does != "hangs":
                result_file(folder, rank).write_text(json.dumps(self._result(trial, int(folder.name))))
        return _FinishedLaunch(spec.processes, hangs=does == "hangs")

    def _result(self, trial: TrialInstructions, round_: int) -> dict[str, Any]:
        steps = trial.measure.steps
        seconds = self._options.step_s * (1 + max(round_, 0) % 10 / 100)
        timed = {"step_s": [seconds] * steps, "loss": [1.0] * steps} if trial.job.kind == MEASURE else {}
        samples = timed | {column: [value] for column, value in self._options.values.items()}
        phases = {"start": 0.0, "build": 0.0, "warmup": 0.0, "time": 1.0}
        real = trial.case.strategy.name != PRETENDED_STRATEGY
        degraded = "no process was started; launcher pretend invents the numbers" if real else ""
        passes = {"step_s": "time"} if timed else {}
        return {
            **_RESULT_DEFAULTS,
            "samples": samples,
            "passes": passes,
            "phases": phases,
            "degraded": degraded,
        }

    def close(self) -> None:
        self._options.log_event("close")


def _write_error(folder: Path, rank: int, kind: str, message: str) -> None:
    RankError(clock.now(), "time", [kind], message).write(folder, rank)


class _FinishedLaunch(RunningLaunch):
    def __init__(self, ranks: int, *, hangs: bool = False) -> None:
        self._ranks, self._hangs = ranks, hangs

    def wait(self, seconds: float) -> list[RankExit]:
        if self._hangs:
            time.sleep(seconds)
            return []
        return [RankExit(rank, 0, clock.now()) for rank in range(self._ranks)]

    def signal(self, number: int) -> None:
        """Do nothing: there is no rank to receive it."""

    def stop(self) -> None:
        self._hangs = False
