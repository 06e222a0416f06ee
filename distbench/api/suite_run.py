"""Run a suite from the first trial to the report."""

from __future__ import annotations

import json
import os
import threading
import time
import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from distbench.analysis.run import RunAnalysis
from distbench.api.extra_rounds import (
    NoisyTrialRounds,
    RecommendationRounds,
    first_nonempty,
    previous_looks,
)
from distbench.api.preflight import CpuContention, warn_before_run
from distbench.api.progress import observe_progress
from distbench.api.run import RunResults
from distbench.api.tuning_rounds import TuningRounds
from distbench.core import registry
from distbench.core.errors import InfrastructureError, UsageError
from distbench.core.job import job_kinds
from distbench.core.text import one_line
from distbench.launchers.base import Launcher
from distbench.plan import STARTED_ONCE, check_started_once
from distbench.record.progress import ProgressLog
from distbench.record.record_reader import retry_eagerly
from distbench.record.run_folder import Run, report_command, resume_command
from distbench.report import page
from distbench.run import RunExecution, StopReason, ignore_time_warning
from distbench.suite import Overrides, Suite, load_suite, parse_suite_text
from distbench.system.rank_variables import started_rank


def run(
    suite: str | os.PathLike[str] | Mapping[str, Any],
    *,
    out: str | os.PathLike[str] = "reports",
    quiet: bool = False,
    **overrides: Any,
) -> RunResults:
    """Measure a suite; write its records and a report, as ``distbench run`` does.

    Call it from the main thread: Ctrl-C, or the interrupt of a notebook, ends the trial in flight.

    Args:
        suite: A suite's file, or its keys as a mapping.
        out: Folder that holds the runs.
        quiet: Show no progress.
        overrides: Keys of the suite with their values, such as ``only=["ddp*"]``, ``check=True`` or
            ``**{"measure.steps": 10}``.

    Raises:
        SuiteError: all mistakes in the suite and the overrides.
        UsageError: the folder can't be created, or this process can't start trials.
        InfrastructureError: the disk is full, or a time limit is near; all that was stored is intact.
        KeyboardInterrupt: Ctrl-C or SIGTERM; no process is left, and the run can be resumed.
    """
    if threading.current_thread() is not threading.main_thread():
        raise UsageError("run: only the main thread can be interrupted, so call it from that one")
    changed = _overrides(overrides)
    loaded = _load(suite, changed)
    _check_launcher(loaded)
    file = "suite.yaml" if isinstance(suite, Mapping) else os.fspath(suite)
    execution = RunExecution.create(loaded, Path(out), ["distbench", "run", file, *_options(changed)])
    journal = ProgressLog(execution.run.folder)
    with ignore_time_warning(), journal.session() as session:
        stopped = execute(execution, journal, None, loaded.measure.repeat_noisy, quiet=quiet)
        analysed = retry_eagerly(partial(write_results, execution.run))
        _raise_stopped(stopped, execution.run.folder)
        session.exit_code = int(any(record.status.is_failure for record in analysed.records))
    return RunResults(execution.run)


def execute(
    execution: RunExecution,
    journal: ProgressLog,
    settling_minutes: float | None,
    repeats: int,
    *,
    retry_failed: bool = False,
    quiet: bool,
) -> StopReason:
    """Run what is missing; return what stopped it, empty: nothing.

    Args:
        settling_minutes: Add rounds for so long until the recommendation is settled; None: add none.
        repeats: Maximum number of repeated noisy trials per case.
    """
    busy = CpuContention(execution.suite, execution.plan, repeats).warning
    with observe_progress(quiet=quiet, journal=journal, contention_warning=busy) as watcher:
        warn_before_run(execution, watcher)
        trials = execution.suite.measure.trials
        settling, repeating = None, NoisyTrialRounds(watcher, trials, repeats) if repeats else None
        if settling_minutes:
            settling = RecommendationRounds(watcher, settling_minutes, previous_looks(execution.run, trials))
        more = first_nonempty(repeating, settling)
        return execution.execute(watcher, more, retry_failed=retry_failed)


def execute_tuning(
    execution: RunExecution, journal: ProgressLog, minutes: float, memory: float | None, *, quiet: bool
) -> StopReason:
    """Measure rates, then the cases that may be the fastest; return what stopped it, empty: nothing.

    Args:
        minutes: Start no trial after so long.
        memory: Bytes that a case may take on each device; None: no limit but that of the device.
    """
    repeats = execution.suite.measure.repeat_noisy
    busy = CpuContention(execution.suite, execution.plan, repeats).warning
    with observe_progress(quiet=quiet, journal=journal, contention_warning=busy) as watcher:
        warn_before_run(execution, watcher)
        began = time.monotonic()
        tuning = TuningRounds(watcher, began + 60 * minutes, memory, execution.suite.measure)
        return execution.without_timed_trials().execute(watcher, tuning)


def write_results(run: Run) -> RunAnalysis:
    """Analyse *run* and write its report, without printing anything."""
    analysed = RunAnalysis.read(run)
    write_report(run, analysed)
    return analysed


def write_report(run: Run, analysed: RunAnalysis) -> Path:
    """Write the report of *run*, and return its path.

    Raises:
        InfrastructureError: it can't be written; the message says how to write it later.
    """
    try:
        return page.write(run.folder, analysed)
    except InfrastructureError as error:
        again = report_command(run.folder)
        advice = f"the records are intact; free some space, then write the report with: {again}"
        raise InfrastructureError(error.problem, advice) from error


def _overrides(given: Mapping[str, Any]) -> Overrides:
    """Overrides of the keys *given*, which messages name as the argument of the call."""
    kinds = [kind.name for kind in job_kinds()]
    # as on the command line, --check leaves a section that the suite has
    jobs = [key for key, value in given.items() if value is True and key in kinds]
    settings = {key: f"{key}={_as_json(value)}" for key, value in given.items() if key not in jobs}
    return Overrides(
        set=list(settings.values()),
        jobs=jobs,
        option_of={setting: f"run({setting})" for setting in settings.values()},
    )


def _options(overrides: Overrides) -> list[str]:
    """Options of the command line that stand for *overrides*."""
    settings = [word for setting in overrides.set for word in ("--set", setting)]
    return [*settings, *(f"--{job}" for job in overrides.jobs)]


def _load(suite: str | os.PathLike[str] | Mapping[str, Any], changed: Overrides) -> Suite:
    if isinstance(suite, Mapping):
        return parse_suite_text(f"{_as_json(dict(suite), indent=2)}\n", changed)
    if isinstance(suite, str | os.PathLike):
        return load_suite(Path(suite), changed)
    what = "expected a suite's file, or a mapping with at least workload, batch, strategies"
    raise UsageError(f"suite = {one_line(repr(suite), 60)}: {what}")


def _as_json(value: Any, indent: int | None = None) -> str:
    """*value* as JSON, which is YAML; arrays of numpy and torch become lists and numbers, paths text."""
    try:
        return json.dumps(value, indent=indent, ensure_ascii=False, default=_plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(
            f"suite: {error}; use text, numbers, lists and mappings with text as keys"
        ) from error


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _check_launcher(suite: Suite) -> None:
    """Refuse processes that another launcher has started: they would have to leave this function as one."""
    launcher: Launcher = registry.create_plugin("launchers", suite.launcher)
    check_started_once(launcher)
    if launcher.joins_started_ranks:
        raise UsageError(
            f"launcher = {suite.launcher.name!r}: several processes can't share one call; start the command "
            "in each of them: distbench run SUITE"
        )
    if placed := started_rank(os.environ):
        warnings.warn(f"{placed.variables}: {STARTED_ONCE}", stacklevel=3)


def _raise_stopped(by: StopReason, folder: Path) -> None:
    again = f"resume with: {resume_command(folder)}"
    if by == "time":
        raise InfrastructureError(
            "the time limit around this run is near: stopped after the trial in flight", again
        )
    if by:
        raise KeyboardInterrupt(f"stopped; {again}")
