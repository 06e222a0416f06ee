"""``distbench plan``: show the cases, time and launches of a run."""

from __future__ import annotations

from typing import Annotated

import typer

from distbench.cli import options
from distbench.cli.options import flag
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
    on: options.OnOption = "",
    nodes: options.NodesOption = None,
    commands: Annotated[
        bool, flag("--commands", text="Also show the commands that would be launched.")
    ] = False,
    estimate: Annotated[
        bool,
        flag("--estimate", text="Run a short trial of each case that has not run yet, to estimate its time."),
    ] = False,
    as_json: options.JsonOption = False,
) -> int:
    """Show what a run would do, and how long it takes.

    Nothing is launched without --estimate. A model of your own is constructed once, in a separate process.
    """
    from distbench.cli import queue_submission
    from distbench.cli.interruption import print_stopped
    from distbench.cli.plan_output import PlannedRun, plan_json, print_plan, show_submission
    from distbench.cli.time_estimate import TimeEstimate, run_short_trials
    from distbench.cli.user_models import mark_refused_cases
    from distbench.plan import launcher_machine, make_plan
    from distbench.plan.environments import detect_environments
    from distbench.suite import load_suite

    if on and estimate:
        raise UsageError("--estimate runs trials on this machine, and --on on another; use only one of them")
    overrides = options.make_overrides(set_, only, world_sizes, device, check=check, on=on)
    loaded = load_suite(suite, overrides)
    if on:
        show_submission(loaded, out, nodes, queue_submission.to_arguments(overrides), as_json=as_json)
        return 0
    machine = detect_environments(loaded, launcher_machine(loaded))
    plan = mark_refused_cases(loaded, make_plan(loaded, machine), machine, quiet=as_json)
    expected = TimeEstimate.from_runs(plan, loaded, out)
    if estimate and expected.cases_without_time:
        short = run_short_trials(loaded, expected.cases_without_time, out, context.obj)
        if short.stopped:
            return print_stopped(short.stopped, "")
        expected = expected.add_short_trials(short)
    planned = PlannedRun(loaded, machine, plan, expected, out)
    if as_json:
        print_json(plan_json(planned))
    else:
        print_plan(planned, commands=commands)
    # a short trial fails as the case would in a run
    return 1 if expected.any_failed else 0
