"""Measure a command: launch it some times, one after another, and keep each launch as a trial of a run."""

from __future__ import annotations

import dataclasses
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from distbench import __version__
from distbench.core.errors import UsageError
from distbench.core.units import format_count
from distbench.ipc.script_files import ScriptSettings, note_file
from distbench.plan import PlannedCase
from distbench.record import Record
from distbench.record.run_folder import Run, RunInfo, RunState, new_run_id, utc_now
from distbench.run.interruption import StopRequest
from distbench.run.results import run_samplers
from distbench.run.scripts.script_process import ScriptProcess, read_results, world_size
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

Tell = Callable[[str], None]
"""Shows a sentence about the progress of a measurement."""


@dataclass(frozen=True)
class ScriptPlan:
    """What to measure of a command."""

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
    run = _create_run(plan, out, words)
    records: list[Record] = []
    code = 0
    with run.hold_lock(), StopRequest().handle_signals() as stop:
        try:
            for number in range(plan.trials):
                if plan.trials > 1:
                    tell(f"launch {number + 1} of {plan.trials}")
                code, record = _measure_once(run, plan, number, stop, tell)
                records.append(record)
                _store(run, record)
                if code or stop.is_set:
                    break
        except UsageError:
            if not records:
                shutil.rmtree(run.folder, ignore_errors=True)
            raise
        state: RunState = "interrupted" if stop.is_set else "finished"
        run.write_info(dataclasses.replace(run.info(), state=state))
    return ScriptOutcome(run, code, tuple(records))


def _create_run(plan: ScriptPlan, out: Path, words: Sequence[str]) -> Run:
    scripts = [Path(word).stem for word in plan.command if word.endswith(".py")]
    name = slug(scripts[0] if scripts else Path(plan.command[0]).name) if plan.command else "script"
    measure = {"warmup": plan.warmup, "steps": plan.steps, "trials": plan.trials}
    measure["profile_steps"] = plan.profile_steps
    info = RunInfo(
        run_id=new_run_id(),
        suite_name=name,
        version=__version__,
        created=utc_now(),
        state="running",
        command=list(words),
        suite={"name": name, "script": {"command": [*plan.command]}, "measure": measure},
        machine=dict(machine_facts()),
    )
    return Run.create(out, info, f"# measured by: {' '.join(words)}\n")


def _measure_once(
    run: Run, plan: ScriptPlan, number: int, stop: StopRequest, tell: Tell
) -> tuple[int, Record]:
    """Launch the command once; return its exit code and the record."""
    folder = run.folder / "scratch" / f"launch{number}"
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
        ScriptProcess.start(plan.command, settings, run.info().run_id, stdout=stdout) as process,
    ):
        steps = process.wait(keep_running=plan.keep_running, should_stop=lambda: stop.stop_now)
        _tell_progress(steps, folder, plan, tell)
        code = process.exit_code
        is_measured = process.is_measured()
    code = 0 if is_measured and not plan.keep_running and not stop.is_set else code
    ranks = world_size(folder)
    if ranks is None:
        raise UsageError(_nothing_measured_text(folder, code))
    trial = ScriptTrial(
        run.info().run_id,
        number,
        started,
        time.monotonic() - began,
        launched,
        code,
        stop.is_set,
        plan.steps,
        plan.tokens_per_step,
    )
    record = script_record(trial, folder, read_results(folder, ranks), sampled)
    keep_files(folder, run.trial_folder(record.case, record.round))
    return code, record


def _tell_progress(steps: Iterator[None], folder: Path, plan: ScriptPlan, tell: Tell) -> None:
    """Wait for the end of *steps*, and say when ranks begin to train."""
    begun = 0
    for _ in steps:
        ranks = len([*folder.glob("rank*.pid")])
        if ranks > begun:
            begun = ranks
            measured = f"{plan.warmup} warm-up and {plan.steps} timed steps"
            tell(f"{format_count(ranks, 'rank')} began to train; measuring {measured}")


def _store(run: Run, record: Record) -> None:
    run.write_record(record)
    info = run.info()
    if all(item.case.id != record.case_id for item in info.cases):
        run.write_info(dataclasses.replace(info, cases=[*info.cases, PlannedCase(record.case)]))


def _nothing_measured_text(folder: Path, code: int) -> str:
    """Reason why no rank reported anything, and what to do."""
    notes = sorted(folder.glob(note_file(folder, 0).name.replace("0", "*")))
    if notes:
        return f"measure: {notes[0].read_text(encoding='utf-8')}; install distbench there, with its torch"
    claimed = [*folder.glob("rank*.pid")]
    if claimed:
        return (
            f"measure: the command {exit_text(code)} before a step was timed; let the script run longer, or "
            "use a shorter warm-up (--warmup)"
        )
    failed = f"; the command ended with exit code {code}" if code else ""
    return (
        f"measure: no process updated an optimizer of torch{failed}. If the script trains, its launcher "
        "drops PYTHONPATH (start it with: python -m distbench.attach train.py ...), or no optimizer of torch "
        "updates its parameters (call distbench.step() after each step)"
    )
