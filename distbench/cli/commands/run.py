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
from distbench.analysis.run import RunAnalysis
from distbench.cli import options, queue_submission
from distbench.cli.exit_summary import exit_code, print_results
from distbench.cli.extra_rounds import RecommendationRounds, previous_looks
from distbench.cli.follow import detach_text, follow
from distbench.cli.interruption import print_stopped, report_hint_on_abort, resume_hint_on_abort
from distbench.cli.noisy_repeats import NoisyTrialRounds, first_nonempty
from distbench.cli.options import argument, flag, option
from distbench.cli.output import print_note
from distbench.cli.preflight import CpuContention, warn_before_run
from distbench.cli.progress import observe_progress
from distbench.core.errors import EXIT_INTERRUPTED, RecordError, RecordFormatError, UsageError
from distbench.record import catalog, submission
from distbench.record.progress import ProgressLog
from distbench.record.record_reader import retry_eagerly
from distbench.record.run_folder import RUN_FILE, Run, RunInfo, resume_command
from distbench.run import RunExecution, ignore_time_warning
from distbench.run.control import raise_on_termination
from distbench.suite import Overrides, Suite, load_suite

_DEFAULT_MINUTES = 30.0
"""Minutes after which --until-settled starts no round, unless --minutes is given."""


def run(
    context: typer.Context,
    suite: Annotated[Path | None, argument("[SUITE]", "Suite file (YAML).")] = None,
    out: options.OutOption = options.DEFAULT_RUNS_FOLDER,
    set_: options.SetOption = [],
    only: options.OnlyOption = [],
    world_sizes: options.WorldSizesOption = "",
    device: options.DeviceOption = "",
    resume: Annotated[str, option("--resume", "RUN", "Resume a run: do only what is missing.")] = "",
    retry_failed: Annotated[
        bool, flag("--retry-failed", text="With --resume: also repeat trials that failed.")
    ] = False,
    keep_traces: Annotated[
        bool, flag("--keep-traces", text="Keep the profiler trace of every trial.")
    ] = False,
    strict_parity: Annotated[
        bool, flag("--strict-parity", text="Fail if a case did different work than its reference.")
    ] = False,
    check: options.CheckOption = False,
    until_settled: Annotated[
        bool,
        flag(
            "--until-settled",
            text="Then add rounds of the leading cases until the recommendation is settled.",
        ),
    ] = False,
    minutes: Annotated[
        float | None,
        option(
            "--minutes", "N", f"With --until-settled: start no round after N minutes ({_DEFAULT_MINUTES:g})."
        ),
    ] = None,
    repeat_noisy: Annotated[
        int | None,
        option("--repeat-noisy", "N", "Repeat noisy trials, N per case at most, whatever the suite says."),
    ] = None,
    on: options.OnOption = "",
    nodes: options.NodesOption = None,
    detach: Annotated[bool, flag("--detach", text="With --on: do not follow the run.")] = False,
    as_json: options.JsonOption = False,
    quiet: options.QuietOption = False,
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
    changed = options.make_overrides(changes, only, world_sizes, device, check=check)
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
        elsewhere = _submit(suite, out, changed, on, nodes, resume, passed, context.obj)
        return _follow(elsewhere, detach=detach, quiet=quiet)
    if resume:
        others = [change for change in changes if not (check and change.startswith("check."))]
        if suite is not None or any((others, only, world_sizes, device)):
            raise UsageError(
                "--resume takes no SUITE and no overrides. To add the equivalence check to a finished run: "
                "--check [--set check.KEY=VALUE]"
            )
        execution = _load_resumed(resume, out, changed if check else None)
    elif suite is None:
        raise UsageError("run: missing SUITE; use distbench run SUITE or distbench run --resume RUN")
    else:
        execution = RunExecution.create(load_suite(suite, changed), out, context.obj)
    minutes = (minutes or _DEFAULT_MINUTES) if until_settled else None
    repeats = execution.suite.measure.repeat_noisy if repeat_noisy is None else repeat_noisy
    journal = ProgressLog(execution.run.folder)
    with ignore_time_warning(), journal.session() as session:
        analysed = _execute(
            execution,
            journal,
            minutes,
            repeats,
            retry_failed=retry_failed,
            quiet=quiet,
            as_json=as_json,
        )
        session.exit_code = (
            analysed if isinstance(analysed, int) else exit_code(analysed, strict_parity=strict_parity)
        )
    return session.exit_code


def _execute(
    execution: RunExecution,
    journal: ProgressLog,
    settling_minutes: float | None,
    repeats: int,
    *,
    retry_failed: bool,
    quiet: bool,
    as_json: bool,
) -> RunAnalysis | int:
    """Run what is missing, and report it; return the exit code if it was stopped early.

    Args:
        settling_minutes: Add rounds for so long until the recommendation is settled; None: add none.
        repeats: Maximum number of repeated noisy trials per case.
    """
    resume_with = resume_command(execution.run.folder)
    busy = CpuContention(execution.suite, execution.plan, repeats).warning
    with (
        resume_hint_on_abort(resume_with),
        observe_progress(quiet=quiet, journal=journal, contention_warning=busy) as watcher,
    ):
        warn_before_run(execution, watcher)
        trials = execution.suite.measure.trials
        settling, repeating = None, NoisyTrialRounds(watcher, trials, repeats) if repeats else None
        if settling_minutes:
            settling = RecommendationRounds(watcher, settling_minutes, previous_looks(execution.run, trials))
        more = first_nonempty(repeating, settling)
        stopped_by = execution.execute(watcher, more, retry_failed=retry_failed)
    with resume_hint_on_abort(resume_with) if stopped_by else report_hint_on_abort(execution.run.folder):
        analysed = retry_eagerly(partial(print_results, execution.run, as_json=as_json))
    return print_stopped(stopped_by, resume_with) if stopped_by else analysed


def _submit(
    suite: Path | None,
    out: Path,
    changed: Overrides,
    on: str,
    nodes: int | None,
    resume: str,
    flags: Sequence[str],
    command: Sequence[str],
) -> Run:
    """Submit the run to the launcher *on*."""
    if not on:
        raise UsageError("--nodes and --detach go with --on, such as --on slurm")
    if resume:
        return queue_submission.resubmit_run(catalog.find_run(resume, out), on, nodes, changed.set, flags)
    if suite is None:
        raise UsageError("run: missing SUITE; use distbench run SUITE --on SLURM --nodes N")
    loaded = load_suite(suite, dataclasses.replace(changed, launcher=on))
    return queue_submission.submit_run(loaded, out, nodes, changed, command, flags)


def _follow(run: Run, *, detach: bool, quiet: bool) -> int:
    """Follow *run* to its end, unless *detach* is set."""
    if detach:
        print_note(detach_text(run.folder))
        return 0
    try:
        with raise_on_termination():
            return follow(run, quiet=quiet)
    except KeyboardInterrupt:
        print_note(detach_text(run.folder))
        return EXIT_INTERRUPTED


def _load_resumed(name: str, out: Path, added: Overrides | None) -> RunExecution:
    """Execution of what is missing from the run *name*.

    Args:
        added: The equivalence check that the run was started without.
    """
    run = catalog.find_run(name, out)
    if not (run.folder / RUN_FILE).exists() and (request := submission.read_request(run.folder)):
        return RunExecution.from_request(run.folder, request)
    info = _read_info(run)
    if added and info.suite.get("check"):
        raise UsageError(f"--resume {name} --check: the run was started with --check; resume without it")
    suite = Suite.from_resolved(info.suite, added)
    planned = plan.make_plan(suite)
    if [item.case.id for item in planned.cases] != [item.case.id for item in info.cases]:
        raise UsageError(
            f"--resume {name}: on this machine, or with this version, the suite has different cases; "
            f"start a new run with: distbench run {run.folder / 'suite.yaml'}"
        )
    if added:
        # the one command that repeats all of it
        settings = [word for setting in added.set for word in ("--set", setting)]
        command = [*info.command, "--check", *settings]
        info = dataclasses.replace(info, suite=suite.to_resolved(), command=command)
    return RunExecution(run, info, suite, planned)


def _read_info(run: Run) -> RunInfo:
    """Content of ``run.json`` of *run*.

    Raises:
        UsageError: that can't be read; the message says what to do.
    """
    try:
        return run.info()
    except RecordFormatError:
        raise
    except RecordError as error:
        repair = f"distbench check {shlex.quote(str(run.folder))} --repair"
        raise RecordError(f"{error}; rebuild it from suite.yaml and the records: {repair}") from error
