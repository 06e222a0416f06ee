"""``distbench plan``: show the cases, time and launches of a run."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from distbench.cli import options
from distbench.cli.options import flag, option
from distbench.cli.output import print_json
from distbench.core.errors import UsageError


def plan(
    context: typer.Context,
    suite: options.SuiteArgument,
    out: options.OutOption = options.DEFAULT_RUNS_FOLDER,
    set_: options.SetOption = [],
    only: options.OnlyOption = [],
    world_sizes: options.WorldSizesOption = "",
    device: options.DeviceOption = "",
    check: options.CheckOption = False,
    on: options.PlannedOnOption = "",
    nodes: options.NodesOption = None,
    gpus_per_node: options.GpusPerNodeOption = None,
    commands: Annotated[
        bool, flag("--commands", text="Also show the commands that would be launched.")
    ] = False,
    estimate: Annotated[
        bool,
        flag("--estimate", text="Run a short trial of each case that has not run yet, to estimate its time."),
    ] = False,
    trace: Annotated[
        bool,
        flag(
            "--trace",
            text="Also trace a step of each case in torch, without memory or devices: its peak memory.",
        ),
    ] = False,
    predict: Annotated[
        bool, flag("--predict", text="Also predict the step time of each case, without a launch.")
    ] = False,
    rates: Annotated[
        str,
        option("--rates", "RUN", "Run with a probe to predict from (default: the newest in DIR)."),
    ] = "",
    what_if: Annotated[
        bool,
        flag(
            "--what-if",
            text="Also predict with other memory, links and numbers of nodes: of the fastest case on each "
            "number of devices, or of those of --only.",
        ),
    ] = False,
    as_json: options.JsonOption = False,
) -> int:
    """Show what a run would do, and how long it takes.

    Nothing is launched without --estimate. A model of your own is constructed once, in a separate process.
    """
    from distbench.cli import queue_submission
    from distbench.cli.described_machine import find_described_machine
    from distbench.cli.interruption import print_stopped
    from distbench.cli.plan_output import plan_json, print_plan, print_submission, submission_json
    from distbench.cli.plan_variations import check_what_if, print_variations, variations_json, vary_plan
    from distbench.cli.planned_run import plan_run
    from distbench.cli.time_estimate import run_short_trials
    from distbench.suite import load_suite

    _check_options(on, nodes, gpus_per_node, is_local_only=estimate or commands)
    described = find_described_machine(on, nodes, gpus_per_node)
    if what_if:
        check_what_if(described, rates)
        predict = True
    if described and described.gpu_type:
        on = ""
    overrides = options.make_overrides(set_, only, world_sizes, device, check=check, on=on)
    loaded = load_suite(suite, overrides)
    submission = None
    if on:
        submission = queue_submission.planned_submission(loaded, out, nodes, overrides, context.obj)
    if (predict or rates) and on and not described:
        raise UsageError(
            f"--predict: the devices of {on} are not known here; add --gpus-per-node N, or name GPUs with "
            "--on TYPE:NODESxGPUS"
        )
    if submission and not described:
        print_submission(loaded, submission, as_json=as_json)
        return 0
    planned = plan_run(
        loaded, out, described, quiet=as_json, trace=trace, rates=rates if predict or rates else None
    )
    if estimate and planned.expected.cases_to_try:
        short = run_short_trials(loaded, planned.expected.cases_to_try, out, context.obj)
        if short.stopped:
            return print_stopped(short.stopped, "")
        planned = dataclasses.replace(planned, expected=planned.expected.add_short_trials(short))
    varied = vary_plan(planned) if what_if else []
    if as_json:
        more = {"what_if": variations_json(varied)} if what_if else {}
        print_json({**plan_json(planned), **more, **submission_json(submission)})
    else:
        print_plan(planned, submission, commands=commands)
        if what_if:
            print_variations(varied, planned)
    # a short trial fails as the case would in a run
    return 1 if planned.expected.any_failed else 0


def _check_options(on: str, nodes: int | None, gpus_per_node: int | None, *, is_local_only: bool) -> None:
    if gpus_per_node is not None and gpus_per_node < 1:
        raise UsageError(f"--gpus-per-node = {gpus_per_node}: must be at least 1")
    if nodes is not None and nodes < 1:
        raise UsageError(f"--nodes = {nodes}: must be at least 1")
    if nodes is not None and not (on or gpus_per_node):
        raise UsageError(f"--nodes = {nodes}: goes with --on or --gpus-per-node; add one of them")
    if is_local_only and (on or gpus_per_node):
        raise UsageError(
            "--estimate and --commands are about this machine, --on and --gpus-per-node about others; "
            "use only one of the two"
        )
