"""``distbench tune``: find the fastest case of a grid by predicting all and measuring few."""

from __future__ import annotations

import dataclasses
import glob
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from distbench.cli import options
from distbench.cli.decorators import ignores_time_warnings
from distbench.cli.options import argument, option
from distbench.cli.output import apply_style, print_json, print_text, terminal_width, wrap_to_terminal
from distbench.core.errors import UsageError

if TYPE_CHECKING:
    from distbench.suite import Overrides, Suite

_DEFAULT_MINUTES = 20.0
_PROBE_S = 15.0
"""Seconds of the probe, unless probe.seconds is given: what it leaves open, trials of cases settle."""


@ignores_time_warnings
def tune(
    context: typer.Context,
    suite: Annotated[Path | None, argument("[SUITE]", "Suite file (YAML): the grid of its cases.")] = None,
    memory: Annotated[
        str, option("--memory", "SIZE", "Memory per device that a case may take, such as 80GiB.")
    ] = "",
    minutes: Annotated[
        float, option("--minutes", "N", "Start no round of trials after N minutes.", has_default=True)
    ] = _DEFAULT_MINUTES,
    out: options.OutOption = options.DEFAULT_RUNS_FOLDER,
    set_: options.SetOption = [],
    only: options.OnlyOption = [],
    world_sizes: options.WorldSizesOption = "",
    device: options.DeviceOption = "",
    resume: Annotated[str, option("--resume", "RUN", "Go on with a run that tune began.")] = "",
    as_json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> int:
    """Find the fastest case of a suite: predict all, measure few.

    It measures the rates of the machine first, then the cases that may still be the fastest, until no other
    one can be. Without --world-sizes it tunes for the most devices of the suite.
    """
    from functools import partial

    from distbench.api.pick import pick_case
    from distbench.api.suite_run import execute_tuning, write_results
    from distbench.cli.interruption import print_stopped, report_hint_on_abort, resume_hint_on_abort
    from distbench.cli.run_session import load_resumed
    from distbench.cli.started_ranks import join_started_ranks
    from distbench.core.units import parse_bytes
    from distbench.prediction.probed_rates import PROBE
    from distbench.record.progress import ProgressLog
    from distbench.record.record_reader import retry_eagerly
    from distbench.report import page
    from distbench.report.recommendation import candidate_table, recommendation_json
    from distbench.run import RunExecution

    if not minutes > 0:
        raise UsageError(f"--minutes = {minutes:g}: must be above 0")
    room = options.parse_option("--memory", memory, parse_bytes)
    changed = options.make_overrides(set_, only, world_sizes, device)
    if resume:
        if suite is not None or any((set_, only, world_sizes, device)):
            raise UsageError("tune --resume takes no SUITE and no overrides")
        execution = load_resumed(context, resume, out, changed)
        if PROBE not in execution.suite.jobs:
            raise UsageError(
                f"tune --resume {resume}: its suite has no probe; distbench tune SUITE begins anew"
            )
    else:
        loaded = _grid(suite, changed)
        join_started_ranks(context, loaded, out)
        execution = RunExecution.create(loaded, out, context.obj)
    folder = execution.run.folder
    again = ["distbench", "tune", "--resume", str(folder), *(["--memory", memory] if memory else [])]
    resume_with = shlex.join([*again, *([f"--minutes={minutes:g}"] if minutes != _DEFAULT_MINUTES else [])])
    journal = ProgressLog(folder)
    with journal.session() as session:
        with resume_hint_on_abort(resume_with):
            stopped = execute_tuning(execution, journal, minutes, room, quiet=quiet)
        with report_hint_on_abort(folder):
            analysed = retry_eagerly(partial(write_results, execution.run))
        if stopped:
            session.exit_code = print_stopped(stopped, resume_with)
            return session.exit_code
        picked = pick_case(analysed, memory=memory or None, prefix="--")
        session.exit_code = 0 if picked.selection.pick else 1
    if as_json:
        print_json(
            {
                **recommendation_json(picked.recommendation, picked.selection, []),
                "run": str(folder),
                "report": str(page.page_file(folder)),
            }
        )
        return session.exit_code
    print_text(wrap_to_terminal(picked.headline, 0))
    for reason in picked.reasons:
        print_text(wrap_to_terminal(f"- {reason}", 2, 2))
    print_text("\n" + candidate_table(picked.selection).to_text(terminal_width(), apply_style))
    print_text(f"\nreport: {page.page_file(folder)}")
    return session.exit_code


def _grid(file: Path | None, changed: Overrides) -> Suite:
    """Suite of *file* with a probe in place of its other jobs, for the most devices if nothing else is said.

    Raises:
        SuiteError: the suite or *changed* is invalid.
        UsageError: no suite is given.
    """
    from distbench.core.job import MEASURE
    from distbench.plan import make_plan
    from distbench.prediction.probed_rates import PROBE
    from distbench.suite import load_suite

    if file is None:
        raise UsageError("tune: missing SUITE; use distbench tune SUITE, or distbench tune --resume RUN")
    suite = load_suite(file, dataclasses.replace(changed, jobs=[PROBE]))
    section = suite.jobs[PROBE]
    if section == type(section)():
        section = dataclasses.replace(section, seconds=_PROBE_S)
    suite = dataclasses.replace(suite, jobs={MEASURE: suite.measure, PROBE: section})
    planned = make_plan(suite).cases
    runnable = [item for item in planned if item.problem is None] or planned
    sizes = {max((item.case.world_size for item in runnable), default=1)}
    if changed.world_sizes is not None:
        # single runs on one device, whatever sizes are asked for
        sizes = {*changed.world_sizes} & {item.case.world_size for item in planned}
    names = tuple(glob.escape(item.case.name) for item in planned if item.case.world_size in sizes)
    return dataclasses.replace(suite, only=names or suite.only)
