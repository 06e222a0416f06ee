"""Execute a run and print its results, resume it, or submit it to a job engine."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import typer

from distbench import plan
from distbench.analysis.run import RunAnalysis
from distbench.analysis.wording.verdict_sentences import (
    bad_verdict_sentences,
    missing_verdict_sentences,
    unmeasured_sentences,
)
from distbench.api.suite_run import execute, write_report
from distbench.cli import queue_submission
from distbench.cli.follow import detach_text, follow
from distbench.cli.interruption import (
    print_stopped,
    report_hint_on_abort,
    resume_hint_on_abort,
)
from distbench.cli.output import (
    EXIT_UNCHECKED,
    apply_style,
    print_error,
    print_json,
    print_note,
    print_text,
    terminal_width,
)
from distbench.cli.started_ranks import join_started_ranks
from distbench.core import registry
from distbench.core.errors import (
    EXIT_INTERRUPTED,
    RecordError,
    RecordFormatError,
    UsageError,
)
from distbench.core.text import join_limited
from distbench.record import catalog, submission
from distbench.record.progress import ProgressLog
from distbench.record.record_reader import damage_summary, retry_eagerly
from distbench.record.run_folder import RUN_FILE, Run, RunInfo, resume_command
from distbench.report import overview, page
from distbench.report.run_export import run_json
from distbench.run import RunExecution
from distbench.run.interruption import raise_on_termination
from distbench.suite import Overrides, Suite, load_suite


def execute_run(
    execution: RunExecution,
    journal: ProgressLog,
    settling_minutes: float | None,
    repeats: int,
    *,
    retry_failed: bool,
    quiet: bool,
    show: Callable[[Run], RunAnalysis],
) -> RunAnalysis | int:
    """Run what is missing, and report it; return the exit code if it was stopped early.

    Args:
        settling_minutes: Add rounds for so long until the recommendation is settled; None: add none.
        repeats: Maximum number of repeated noisy trials per case.
        show: Analyses and reports the run.
    """
    resume_with = resume_command(execution.run.folder)
    with resume_hint_on_abort(resume_with):
        stopped_by = execute(
            execution, journal, settling_minutes, repeats, retry_failed=retry_failed, quiet=quiet
        )
    with resume_hint_on_abort(resume_with) if stopped_by else report_hint_on_abort(execution.run.folder):
        analysed = retry_eagerly(partial(show, execution.run))
    return print_stopped(stopped_by, resume_with) if stopped_by else analysed


def submit(
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
    plan.check_started_once(registry.create_plugin("launchers", loaded.launcher))
    return queue_submission.submit_run(loaded, out, nodes, changed, command, flags)


def follow_submitted(run: Run, *, detach: bool, quiet: bool) -> int:
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


def create_execution(
    context: typer.Context, suite: Path | None, changed: Overrides, out: Path
) -> RunExecution:
    """Execution of a new run of *suite* with the overrides *changed*, in a folder below *out*.

    Raises:
        typer.Exit: this process has served the one that executes it.
    """
    if suite is None:
        raise UsageError(
            "run: missing SUITE; use distbench run SUITE, distbench run --from FILE, which writes one, or "
            "distbench run --resume RUN"
        )
    loaded = load_suite(suite, changed)
    join_started_ranks(context, loaded, out)
    return RunExecution.create(loaded, out, context.obj)


def load_resumed(context: typer.Context, name: str, out: Path, changed: Overrides) -> RunExecution:
    """Execution of what is missing from the run *name*.

    Args:
        changed: Options of its launcher, and the equivalence check that it was started without.

    Raises:
        typer.Exit: this process has served the one that executes it.
    """
    run = catalog.find_run(name, out)
    if not (run.folder / RUN_FILE).exists() and (request := submission.read_request(run.folder)):
        return RunExecution.from_request(run.folder, request, changed.set)
    info = _read_info(run)
    if info.is_script:
        again = shlex.join(info.command)
        raise UsageError(f"--resume {name}: it measured a script, which starts anew with: {again}")
    if info.is_trace:
        raise UsageError(f"--resume {name}: it keeps traces, which are complete")
    if changed.jobs and info.suite.get("check"):
        raise UsageError(f"--resume {name} --check: the run was started with --check; resume without it")
    suite = Suite.from_resolved(info.suite, changed)
    join_started_ranks(context, suite, run.folder.parent)
    planned = plan.make_plan(suite)
    if [item.case.id for item in planned.cases] != [item.case.id for item in info.cases]:
        raise UsageError(
            f"--resume {name}: on this machine, or with this version, the suite has different cases; "
            f"start a new run with: distbench run {run.folder / 'suite.yaml'}"
        )
    if changed.jobs or changed.set:
        # the one command that repeats all of it
        settings = [word for setting in changed.set for word in ("--set", setting)]
        command = [*info.command, *(f"--{job}" for job in changed.jobs), *settings]
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


def _table(run: RunAnalysis) -> str:
    return overview.overview_text(run, terminal_width(), apply_style)


def print_results(run: Run, shown: Callable[[RunAnalysis], str] = _table, *, as_json: bool) -> RunAnalysis:
    """Print the results as *shown*, then write the report: it may fail where the numbers don't."""
    analysed = RunAnalysis.read(run)
    if as_json:
        print_json(results_json(run, analysed))
    else:
        print_text(shown(analysed))
    report = write_report(run, analysed)
    if not as_json:
        print_text(f"\nreport: {report}")
    return analysed


def results_json(run: Run, analysed: RunAnalysis) -> dict[str, Any]:
    """Return the results of *run* as ``run --json`` prints them."""
    return {**run_json(analysed), "report": str(page.page_file(run.folder))}


def exit_code(run: RunAnalysis, *, strict_parity: bool) -> int:
    """Exit code of a finished run; the reasons are printed.

    1 if a case failed or was judged bad, or a trial is damaged; ``EXIT_UNCHECKED`` if a requested judgement
    is missing, or no case could be measured.
    """
    problems = bad_verdict_sentences(run)
    if run.damaged:
        problems.append(damage_summary(run.damaged))
    if strict_parity:
        changes = run.parity.work_changes().items()
        problems += [
            f"--strict-parity: {difference} ({join_limited(names)})" for difference, names in changes
        ]
    for problem in problems:
        print_error(problem)
    silent = [*missing_verdict_sentences(run), *unmeasured_sentences(run)]
    for each in silent:
        print_error(each)
    if problems or any(record.status.is_failure for record in run.records):
        return 1
    return EXIT_UNCHECKED if silent else 0
