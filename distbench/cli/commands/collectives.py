"""``distbench collectives``: measure the links between ranks, like nccl-tests."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from distbench.cli import options
from distbench.cli.decorators import ignores_time_warnings
from distbench.cli.options import argument, option
from distbench.cli.output import apply_style, terminal_width
from distbench.core.errors import UsageError

if TYPE_CHECKING:
    from distbench.analysis.run import RunAnalysis
    from distbench.suite import Overrides, Suite

_KIND = "collectives"
_SUITE = """\
name: collectives
description: Bandwidth and latency of collectives.
# nothing is trained: these only say on which devices
workload: {transformer: {preset: tiny}}
data: synthetic
batch: {per_device_batch_size: 1}
strategies: [ddp]
metrics: [startup]
measure: {trials: 0}
collectives: {}
"""


@ignores_time_warnings
def collectives(
    context: typer.Context,
    suite: Annotated[
        Path | None,
        argument("[SUITE]", "Suite file: uses its devices, launcher and collectives, not its trainings."),
    ] = None,
    operations: Annotated[
        str, option("--operations", "OP,OP", "all_reduce, all_gather, ... (default: all of them).")
    ] = "",
    sizes: Annotated[str, option("--sizes", "MIN..MAX", "Message sizes: 8KiB..64MiB, or 1MiB,16MiB.")] = "",
    factor: Annotated[str, option("--factor", "N", "Each size of a range is N times the one before.")] = "",
    dtypes: Annotated[str, option("--dtypes", "DTYPE,DTYPE", "fp64, fp32, bf16, fp16.")] = "",
    groups: Annotated[str, option("--groups", "GROUP,GROUP", "all, node, between.")] = "",
    launcher: Annotated[str, option("--launcher", "NAME", "Launcher, as in a suite: local, slurm.")] = "",
    out: options.OutOption = options.DEFAULT_RUNS_FOLDER,
    set_: options.SetOption = [],
    world_sizes: options.WorldSizesOption = "",
    device: options.DeviceOption = "",
    as_json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> int:
    """Measure all-reduce and the like, as nccl-tests does."""
    from distbench.api.preflight import warn_before_run
    from distbench.api.progress import observe_progress
    from distbench.cli.interruption import print_stopped, report_hint_on_abort, resume_hint_on_abort
    from distbench.cli.run_session import exit_code, print_results
    from distbench.cli.started_ranks import join_started_ranks
    from distbench.record.record_reader import retry_eagerly
    from distbench.record.run_folder import resume_command
    from distbench.run import RunExecution

    changes = {f"launcher={launcher}": f"--launcher {launcher}"} if launcher else {}
    listed = {"operations": operations, "dtypes": dtypes, "groups": groups}
    changes |= {f"{_KIND}.{key}=[{text}]": f"--{key} {text}" for key, text in listed.items() if text}
    if sizes:
        changes[f"{_KIND}.sizes={sizes if '..' in sizes else f'[{sizes}]'}"] = f"--sizes {sizes}"
    if factor:
        changes[f"{_KIND}.factor={factor}"] = f"--factor {factor}"
    changed = options.make_overrides([*changes, *set_], [], world_sizes, device, option_of=changes)
    loaded = _only_collectives(suite, changed)
    join_started_ranks(context, loaded, out)
    execution = RunExecution.create(loaded, out, context.obj)
    resume_with = resume_command(execution.run.folder)
    with resume_hint_on_abort(resume_with), observe_progress(quiet=quiet) as watcher:
        warn_before_run(execution, watcher)
        was_stopped = execution.execute(watcher)
    with resume_hint_on_abort(resume_with) if was_stopped else report_hint_on_abort(execution.run.folder):
        analysed = retry_eagerly(partial(print_results, execution.run, _links_table, as_json=as_json))
    if was_stopped:
        return print_stopped(was_stopped, resume_with)
    return exit_code(analysed, strict_parity=False)


def _only_collectives(file: Path | None, changed: Overrides) -> Suite:
    """Suite with collectives only: from *file*, or on all devices of the launcher.

    Raises:
        SuiteError: the suite or *changed* is invalid.
        UsageError: there is only one device, so there are no links to measure.
    """
    from distbench.core.job import MEASURE
    from distbench.plan import launcher_machine
    from distbench.suite import load_suite, parse_suite_text

    jobs = [*changed.jobs, _KIND]
    changed = dataclasses.replace(changed, jobs=jobs)
    suite = load_suite(file, changed) if file else parse_suite_text(_SUITE, changed)
    if file is None and changed.world_sizes is None:
        devices = launcher_machine(suite).devices
        if devices < 2:
            raise UsageError(
                "collectives: this machine has one device, and a collective needs at least two; on the "
                "CPU, use --world-sizes 2 to start two ranks"
            )
        suite = dataclasses.replace(suite, world_sizes=(devices,))
    kept = {MEASURE: dataclasses.replace(suite.measure, trials=0), _KIND: suite.jobs[_KIND]}
    return dataclasses.replace(suite, jobs=kept)


def _links_table(run: RunAnalysis) -> str:
    from distbench.views.base import all_views

    return all_views()["links"].table(run).to_text(terminal_width(), apply_style)
