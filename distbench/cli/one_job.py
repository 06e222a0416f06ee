"""Run one kind of job of a suite, without its trainings."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path

import typer

from distbench.analysis.run import RunAnalysis
from distbench.api.preflight import warn_before_run
from distbench.api.progress import observe_progress
from distbench.cli.interruption import print_stopped, report_hint_on_abort, resume_hint_on_abort
from distbench.cli.output import apply_style, terminal_width
from distbench.cli.run_session import exit_code, print_results
from distbench.cli.started_ranks import join_started_ranks
from distbench.core.job import MEASURE
from distbench.plan import launcher_machine
from distbench.record.record_reader import retry_eagerly
from distbench.record.run_folder import resume_command
from distbench.run import RunExecution
from distbench.suite import Overrides, Suite, load_suite, parse_suite_text
from distbench.views.base import all_views


def one_job_suite(kind: str, text: str, file: Path | None, changed: Overrides) -> Suite:
    """Suite with the job *kind* only: from *file*, or from *text* on all devices of the launcher.

    Raises:
        SuiteError: the suite or *changed* is invalid.
    """
    changed = dataclasses.replace(changed, jobs=[*changed.jobs, kind])
    suite = load_suite(file, changed) if file else parse_suite_text(text, changed)
    if file is None and changed.world_sizes is None:
        suite = dataclasses.replace(suite, world_sizes=(launcher_machine(suite).devices,))
    kept = {MEASURE: dataclasses.replace(suite.measure, trials=0), kind: suite.jobs[kind]}
    return dataclasses.replace(suite, jobs=kept)


def run_one_job(
    context: typer.Context, suite: Suite, out: Path, view: str, *, as_json: bool, quiet: bool
) -> int:
    """Run *suite* in a folder below *out*, print its *view*, and return the exit code.

    Raises:
        typer.Exit: this process has served the one that executes it.
    """
    join_started_ranks(context, suite, out)
    execution = RunExecution.create(suite, out, context.obj)
    resume_with = resume_command(execution.run.folder)
    with resume_hint_on_abort(resume_with), observe_progress(quiet=quiet) as watcher:
        warn_before_run(execution, watcher)
        was_stopped = execution.execute(watcher)
    shown = partial(_view_text, view)
    with resume_hint_on_abort(resume_with) if was_stopped else report_hint_on_abort(execution.run.folder):
        analysed = retry_eagerly(partial(print_results, execution.run, shown, as_json=as_json))
    if was_stopped:
        return print_stopped(was_stopped, resume_with)
    return exit_code(analysed, strict_parity=False)


def _view_text(view: str, run: RunAnalysis) -> str:
    return all_views()[view].table(run).to_text(terminal_width(), apply_style)
