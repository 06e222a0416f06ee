"""Measure a command: launch it some times, one after another, and keep each launch as a trial of a run."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from distbench import __version__
from distbench.core.errors import UsageError
from distbench.ipc.launch_spec import CURRENT_PYTHON, PythonTarget
from distbench.ipc.script_files import ScriptSettings, note_file
from distbench.metrics.memory import counting_library
from distbench.plan import PlannedCase
from distbench.record import Record
from distbench.record.run_folder import SCRIPT_KEY, Run, RunInfo, RunState, new_run_id, utc_now
from distbench.run.interruption import StopRequest
from distbench.run.results import run_samplers
from distbench.run.scripts.script_process import ScriptProcess, UnmeasuredScript, read_results, world_size
from distbench.run.scripts.script_progress import ScriptProgress, Tell
from distbench.run.scripts.script_results import (
    METRICS,
    ScriptTrial,
    keep_files,
    provisional_case,
    script_record,
)
from distbench.system import clock
from distbench.system.files import slug
from distbench.system.machine import machine_facts
from distbench.system.processes import exit_text

_UNSEEN_UPDATES = (
    "its launcher drops PYTHONPATH (start it with: python -m distbench.attach train.py ...), or no optimizer "
    "of torch updates its parameters, or torch.compile compiled the update (call distbench.step() after each "
    "step)"
)


@dataclass(frozen=True)
class ScriptPlan:
    """A command, and the steps of it to measure."""

    command: tuple[str, ...]
    warmup: int = 10
    steps: int = 50
    profile_steps: int = 3
    trials: int = 1
    keep_running: bool = False
    tokens_per_step: int | None = None
    output_to_stderr: bool = False
    """True if the command's output must not mix with that of distbench."""


@dataclass(frozen=True)
class ScriptOutcome:
    """Result of a measured command."""

    run: Run
    exit_code: int
    """That of the command, or 0 if it was stopped because everything was measured."""
    records: tuple[Record, ...]


def measure_script(plan: ScriptPlan, out: Path, words: Sequence[str], tell: Tell) -> ScriptOutcome:
    """Measure the command of *plan* in a new run below *out*; the run records the command line *words*.

    Raises:
        UsageError: the command can't be started, or no step of it could be timed; no run is left then.
        InfrastructureError: the disk is full or the folder is not writable.
    """
    build_memory_counter(tell)
    info = run_info(plan, words)
    run = Run.create(out, info, suite_text(words))
    records: list[Record] = []
    code = 0
    with run.hold_lock(), StopRequest().handle_signals() as stop:
        launcher = ScriptLauncher(run, plan, stop, tell)
        try:
            for number in range(plan.trials):
                if plan.trials > 1:
                    tell(f"launch {number + 1} of {plan.trials}")
                code, record = launcher.launch(number)
                records.append(record)
                launcher.store(record)
                if code or stop.is_set:
                    break
        except UsageError:
            if not records:
                shutil.rmtree(run.folder, ignore_errors=True)
            raise
        shutil.rmtree(run.folder / "scratch", ignore_errors=True)
        state: RunState = "interrupted" if stop.is_set else "finished"
        run.write_info(dataclasses.replace(run.info(), state=state))
    return ScriptOutcome(run, code, tuple(records))


def build_memory_counter(tell: Tell) -> None:
    """Build the counter of tensors in host memory, once per version of torch; without it, no peak is known.

    Built for the torch beside distbench: that of a script in another environment may differ.
    """
    if machine_facts()["gpus"]:
        return
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return
    if counting_library.library_file(version).is_file():
        return
    tell("building the counter of memory, once")
    command = "from distbench.metrics.memory.allocators import build_library; build_library()"
    # a failure is the reason of absent numbers, said by the ranks
    subprocess.run([sys.executable, "-P", "-c", command], check=False, stdout=subprocess.DEVNULL)


def suite_text(words: Sequence[str]) -> str:
    """Text of ``suite.yaml`` of a run that measured no suite, started by the command line *words*."""
    return f"# measured by: {shlex.join(words)}\n"


def run_info(plan: ScriptPlan, words: Sequence[str]) -> RunInfo:
    """Description of a run of *plan* that is starting, started by the command line *words*."""
    scripts = [Path(word).stem for word in plan.command if word.endswith(".py")]
    name = slug(scripts[0] if scripts else Path(plan.command[0]).name) if plan.command else "script"
    measure = {"warmup": plan.warmup, "steps": plan.steps, "trials": plan.trials}
    measure["profile_steps"] = plan.profile_steps
    return RunInfo(
        run_id=new_run_id(),
        suite_name=name,
        version=__version__,
        created=utc_now(),
        state="running",
        command=list(words),
        suite={"name": name, SCRIPT_KEY: {"command": [*plan.command]}, "measure": measure},
        machine=dict(machine_facts()),
    )


@dataclass(frozen=True)
class ScriptLauncher:
    """Launches the command of a plan, and keeps what its ranks leave in the folder of a run."""

    run: Run
    plan: ScriptPlan
    stop: StopRequest
    tell: Tell
    place: PythonTarget = CURRENT_PYTHON
    """Working directory and variables of the command."""

    def launch(self, round_: int) -> tuple[int, Record]:
        """Launch the command once, as *round_* of the run; return its exit code and the record.

        Raises:
            UsageError: it can't be started.
            UnmeasuredScript: no step of it could be timed.
        """
        plan, run_id = self.plan, self.run.info().run_id
        folder = self.run.folder / "scratch" / f"launch{round_}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        settings = ScriptSettings(
            str(folder.resolve()), plan.warmup, plan.steps, plan.profile_steps, stops=not plan.keep_running
        )
        started, began, launched = utc_now(), time.monotonic(), clock.now()
        gpus = machine_facts()["gpus"]
        provisional = provisional_case("cuda" if gpus else "cpu", max(1, len(gpus)))
        stdout = sys.stderr.fileno() if plan.output_to_stderr else None
        with (
            run_samplers(provisional, METRICS) as sampled,
            ScriptProcess.start(plan.command, settings, run_id, self.place, stdout=stdout) as process,
        ):
            waits = process.wait(keep_running=plan.keep_running, should_stop=lambda: self.stop.stop_now)
            passes = {"warmup": plan.warmup, "time": plan.steps, "count": 1, "profile": plan.profile_steps}
            ScriptProgress(folder, passes, self.tell).follow(waits)
            code = process.exit_code
            is_measured = process.is_measured()
        code = 0 if is_measured and not (plan.keep_running or self.stop.is_set) else code
        ranks = world_size(folder)
        if ranks is None:
            raise UnmeasuredScript(_nothing_measured_text(folder, code), code)
        trial = ScriptTrial(
            run_id,
            round_,
            started,
            time.monotonic() - began,
            launched,
            code,
            self.stop.is_set,
            plan.steps,
            plan.tokens_per_step,
        )
        record = script_record(trial, folder, read_results(folder, ranks), sampled)
        keep_files(folder, self.run.trial_folder(record.case, record.round))
        return code, record

    def store(self, record: Record) -> None:
        """Store *record*, and its case if the run does not have it yet."""
        self.run.write_record(record)
        info = self.run.info()
        if all(item.case.id != record.case_id for item in info.cases):
            self.run.write_info(dataclasses.replace(info, cases=[*info.cases, PlannedCase(record.case)]))


def _nothing_measured_text(folder: Path, code: int) -> str:
    """Reason why no rank reported anything, and what to do."""
    notes = sorted(folder.glob(note_file(folder, 0).name.replace("0", "*")))
    if notes:
        return f"{notes[0].read_text(encoding='utf-8')}; install distbench there, with its torch"
    claimed = [*folder.glob("rank*.pid")]
    if claimed:
        return (
            f"the command {exit_text(code)} before a step was timed; let the script run longer, or "
            "use a shorter warm-up (--warmup)"
        )
    if code:
        failed = f"the command {exit_text(code)} before an optimizer of torch updated anything"
        return f"{failed}; its own output says why. If it trained nevertheless: {_UNSEEN_UPDATES}"
    return f"no process updated an optimizer of torch. If the script trains: {_UNSEEN_UPDATES}"
