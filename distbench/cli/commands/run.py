"""``distbench run``: measure a suite, or resume a run."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from distbench import plan
from distbench.analysis.run import AnalysedRun
from distbench.cli import options, queue_submission
from distbench.cli.exit_summary import exit_code, reported
from distbench.cli.extra_rounds import Settling, looks_at
from distbench.cli.follow import follow, going_on
from distbench.cli.interruption import ended, reporting, resumable
from distbench.cli.noisy_repeats import Repeating, first_of
from distbench.cli.options import argument, flag, option
from distbench.cli.output import note
from distbench.cli.preflight import Neighbours, forewarn
from distbench.cli.progress import observer
from distbench.core.errors import INTERRUPTED, FormatError, RecordError, UsageError
from distbench.record import catalog, submission
from distbench.record.progress import Journal
from distbench.record.reading import rereading
from distbench.record.run_folder import RUN_FILE, Run, RunInfo, resume_command
from distbench.run import Execution, unwarned
from distbench.run.control import interruptible
from distbench.suite import Overrides, Suite, load

_MINUTES = 30.0
"""After so many minutes --until-settled starts no round, unless --minutes says otherwise."""


def run(
    context: typer.Context,
    suite: Annotated[Path | None, argument("[SUITE]", "Suite file (YAML).")] = None,
    out: options.Out = options.REPORTS,
    set_: options.Set = [],
    only: options.Only = [],
    world_sizes: options.WorldSizes = "",
    device: options.Device = "",
    resume: Annotated[str, option("--resume", "RUN", "Resume a run: do only what is missing.")] = "",
    retry_failed: Annotated[
        bool, flag("--retry-failed", text="With --resume: also repeat trials that failed.")
    ] = False,
    keep_traces: Annotated[
        bool, flag("--keep-traces", text="Keep the profiler trace of every trial.")
    ] = False,
    strict_parity: Annotated[
        bool, flag("--strict-parity", text="Fail if a case did different work from its reference.")
    ] = False,
    check: options.Check = False,
    until_settled: Annotated[
        bool,
        flag(
            "--until-settled",
            text="Then add rounds of the cases that may still be the best, until the pick is settled.",
        ),
    ] = False,
    minutes: Annotated[
        float | None,
        option("--minutes", "N", f"With --until-settled: start no round after N minutes ({_MINUTES:g})."),
    ] = None,
    repeat_noisy: Annotated[
        int | None,
        option("--repeat-noisy", "N", "Repeat noisy trials, N per case at most, whatever the suite says."),
    ] = None,
    on: options.On = "",
    nodes: options.Nodes = None,
    detach: Annotated[bool, flag("--detach", text="With --on: do not follow the run.")] = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> int:
    """Run a suite; write its records and a report."""
    if minutes is not None and not minutes > 0:
        raise UsageError(f"--minutes = {minutes:g}: must be above 0")
    if minutes is not None and not until_settled:
        raise UsageError(
            f"--minutes = {minutes:g}: limits the rounds that --until-settled adds; add --until-settled, or "
            "set measure.trials for the number of rounds"
        )
    if repeat_noisy is not None and repeat_noisy < 0:
        raise UsageError(f"--repeat-noisy = {repeat_noisy}: must be at least 0")
    changes = [*set_, *(["measure.keep_traces=true"] if keep_traces else [])]
    changed = options.overrides(changes, only, world_sizes, device, check=check)
    if retry_failed and not resume:
        raise UsageError("--retry-failed: nothing has failed yet; use it with --resume RUN")
    if on or detach or nodes is not None:
        flags = {
            "--json": as_json,
            "--strict-parity": strict_parity,
            "--until-settled": until_settled,
            f"--minutes={minutes or 0:g}": minutes is not None,
            f"--repeat-noisy={repeat_noisy}": repeat_noisy is not None,
            "--retry-failed": retry_failed,
        }
        passed = [word for word, is_given in flags.items() if is_given]
        if resume and (suite is not None or any((only, world_sizes, device, check))):
            raise UsageError("--resume --on takes no SUITE and no overrides but --set launcher.KEY=VALUE")
        elsewhere = _elsewhere(suite, out, changed, on, nodes, resume, passed, context.obj)
        return _followed(elsewhere, detach=detach, quiet=quiet)
    if resume:
        others = [change for change in changes if not (check and change.startswith("check."))]
        if suite is not None or any((others, only, world_sizes, device)):
            raise UsageError(
                "--resume takes no SUITE and no overrides. To add the equivalence check to a finished run: "
                "--check [--set check.KEY=VALUE]"
            )
        execution = _resumed(resume, out, changed if check else None)
    elif suite is None:
        raise UsageError("run: missing SUITE; use distbench run SUITE or distbench run --resume RUN")
    else:
        execution = Execution.start(load(suite, changed), out, context.obj)
    minutes = (minutes or _MINUTES) if until_settled else None
    repeats = execution.suite.measure.repeat_noisy if repeat_noisy is None else repeat_noisy
    journal = Journal(execution.run.folder)
    with unwarned(), journal.session() as session:
        analysed = _executed(
            execution,
            journal,
            minutes,
            repeats,
            retry_failed=retry_failed,
            quiet=quiet,
            as_json=as_json,
        )
        session.code = (
            analysed if isinstance(analysed, int) else exit_code(analysed, strict_parity=strict_parity)
        )
    return session.code


def _executed(
    execution: Execution,
    journal: Journal,
    settling_minutes: float | None,
    repeats: int,
    *,
    retry_failed: bool,
    quiet: bool,
    as_json: bool,
) -> AnalysedRun | int:
    """Run what is missing, and report it; the exit code if it was stopped before.

    Args:
        settling_minutes: Add rounds until the pick is settled, for so long; None: add none.
        repeats: Repeat noisy trials, so many per case at most.
    """
    resume_with = resume_command(execution.run.folder)
    busy = Neighbours(execution.suite, execution.plan, repeats).warning
    with resumable(resume_with), observer(quiet=quiet, journal=journal, forewarning=busy) as watcher:
        forewarn(execution, watcher)
        trials = execution.suite.measure.trials
        settling, repeating = None, Repeating(watcher, trials, repeats) if repeats else None
        if settling_minutes:
            settling = Settling(watcher, settling_minutes, looks_at(execution.run, trials))
        more = first_of(repeating, settling)
        stopped_by = execution.execute(watcher, more, retry_failed=retry_failed)
    with resumable(resume_with) if stopped_by else reporting(execution.run.folder):
        analysed = rereading(partial(reported, execution.run, as_json=as_json))
    return ended(stopped_by, resume_with) if stopped_by else analysed


def _elsewhere(
    suite: Path | None,
    out: Path,
    changed: Overrides,
    on: str,
    nodes: int | None,
    resume: str,
    flags: Sequence[str],
    command: Sequence[str],
) -> Run:
    """The run, handed over to the launcher *on*."""
    if not on:
        raise UsageError("--nodes and --detach go with --on, such as --on slurm")
    if resume:
        return queue_submission.resume(catalog.find(resume, out), on, nodes, changed.set, flags)
    if suite is None:
        raise UsageError("run: missing SUITE; use distbench run SUITE --on SLURM --nodes N")
    loaded = load(suite, dataclasses.replace(changed, on=on))
    return queue_submission.begin(loaded, out, nodes, changed, command, flags)


def _followed(run: Run, *, detach: bool, quiet: bool) -> int:
    """Follow *run* to its end, unless it is left alone."""
    if detach:
        note(going_on(run.folder))
        return 0
    try:
        with interruptible():
            return follow(run, quiet=quiet)
    except KeyboardInterrupt:
        note(going_on(run.folder))
        return INTERRUPTED


def _resumed(name: str, out: Path, added: Overrides | None) -> Execution:
    """Execution of what the run *name* has not done yet.

    Args:
        added: The equivalence check that the run was started without.
    """
    run = catalog.find(name, out)
    if not (run.folder / RUN_FILE).exists() and (request := submission.read_request(run.folder)):
        return Execution.requested(run.folder, request)
    info = _info(run)
    if added and info.suite.get("check"):
        raise UsageError(f"--resume {name} --check: the run was started with --check; resume without it")
    suite = Suite.from_resolved(info.suite, added)
    planned = plan.make(suite)
    if [item.case.id for item in planned.cases] != [item.case.id for item in info.cases]:
        raise UsageError(
            f"--resume {name}: on this machine, or with this version, the suite has different cases; "
            f"start a new run with: distbench run {run.folder / 'suite.yaml'}"
        )
    if added:
        # the one command that repeats all of it
        settings = [word for setting in added.set for word in ("--set", setting)]
        command = [*info.command, "--check", *settings]
        info = dataclasses.replace(info, suite=suite.resolved(), command=command)
    return Execution(run, info, suite, planned)


def _info(run: Run) -> RunInfo:
    """What *run* was asked for.

    Raises:
        UsageError: that can't be read; the message says what to do.
    """
    try:
        return run.info()
    except FormatError:
        raise
    except RecordError as error:
        repair = f"distbench check {shlex.quote(str(run.folder))} --repair"
        raise RecordError(
            f"{error}; it can be made again from suite.yaml and the records: {repair}"
        ) from error
