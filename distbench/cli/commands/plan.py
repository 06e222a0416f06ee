"""``distbench plan``: what a run would do."""

from __future__ import annotations

import dataclasses
import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from distbench import env, registry
from distbench.cli import handing, options
from distbench.cli.options import flag
from distbench.cli.output import columns, say, say_json, wrapped
from distbench.env import Machine
from distbench.job import MEASURE, kind_of
from distbench.plan import Plan, Planned, machine_of, make
from distbench.record import runs
from distbench.run import launch_for
from distbench.suite import Suite, load
from distbench.units import count_text, duration_text

# stands for the folder and the ID, which a run gets when it starts
_RUN = "RUN"


def plan(
    suite: options.Suite,
    out: options.Out = options.REPORTS,
    set_: options.Set = [],
    only: options.Only = [],
    world_sizes: options.WorldSizes = "",
    device: options.Device = "",
    check: options.Check = False,
    on: options.On = "",
    nodes: options.Nodes = None,
    commands: Annotated[
        bool, flag("--commands", text="Also show the commands that would be launched.")
    ] = False,
    as_json: options.Json = False,
) -> int:
    """Show what a run would do, without launching anything."""
    loaded = load(suite, options.overrides(set_, only, world_sizes, device, check=check, on=on))
    if on:
        overrides = handing.override_arguments(set_, only, world_sizes, device, check=check)
        _show_submission(loaded, out / _RUN, nodes, overrides, as_json=as_json)
        return 0
    machine = machine_of(loaded)
    planned = make(loaded, machine)
    expected, basis = _expected(planned, out)
    limit = loaded.limits.prepare + len(planned.trials) * loaded.limits.trial
    if as_json:
        say_json(
            {
                "suite": loaded.resolved(),
                "device": machine.device,
                "devices": machine.devices,
                "cases": [_case(item) for item in planned.cases],
                "expected_s": expected,
                "expected_note": basis,
                "at_most_s": limit,
                "trials": [
                    {"job": task.job.kind, "case_id": task.case.id, "round": task.round}
                    for task in planned.trials
                ],
                "launches": list(_launches(loaded, planned, out)),
            }
        )
        return 0
    _print_size(loaded, machine, planned)
    say(
        wrapped(
            f"expected time: {basis if expected is None else f'{duration_text(expected)} ({basis})'}", 0, 2
        )
    )
    say(wrapped(_limit_text(loaded, limit), 0, 2))
    _print_cases(loaded, planned)
    if commands:
        say(f"\nlaunch of each trial ({_RUN} stands for the run's folder and ID; round 0 of each case):")
        say("".join(map(_launch_text, _launches(loaded, planned, out))))
    else:
        say("\n--commands shows what would be launched.")
    return 0


def _limit_text(suite: Suite, limit: float) -> str:
    hang = duration_text(suite.limits.trial)
    return (
        f"stopped at the latest after {duration_text(limit)}: only if everything hangs, as each trial is "
        f"stopped after {hang} (limits.trial)"
    )


def _show_submission(
    suite: Suite, folder: Path, nodes: int | None, overrides: list[str], *, as_json: bool
) -> None:
    """Show what would be handed to an engine; the devices there, and so the cases, are not known here."""
    submission = handing.resuming(suite, folder.resolve(), nodes, overrides=overrides)
    if as_json:
        say_json({"suite": suite.resolved(), "submission": dataclasses.asdict(submission)})
        return
    say(
        f"{suite.name}: handed to {suite.launcher.name}, which chooses the nodes; the "
        "cases depend on their devices: distbench plan there shows them\n\n"
        f"what is handed over ({_RUN} stands for the run's folder):\n\n{handing.shell_text(submission)}"
    )


def _print_size(suite: Suite, machine: Machine, planned: Plan) -> None:
    trials = Counter(task.job.kind for task in planned.trials)
    others = "".join(
        f"{count_text(count, f'{kind} trial')}, " for kind, count in trials.items() if kind != MEASURE
    )
    say(
        f"{suite.name}: {count_text(len(planned.cases), 'case')}, {count_text(trials[MEASURE], 'trial')} "
        f"({suite.measure.trials} per case, {suite.measure.order}), "
        f"{others}{machine.device} x {machine.devices}"
    )


def _print_cases(suite: Suite, planned: Plan) -> None:
    rows = [("CASE", "ID", "STATUS")]
    rows += [
        (item.case.name, item.case.id, f"unsupported: {item.problem}" if item.problem else "planned")
        for item in planned.cases
    ]
    say("\n" + "\n".join(columns(rows)))
    for word, section in suite.jobs.items():
        if later := kind_of(word).later:
            say("\n" + wrapped(f"{word}: {later.format_map(vars(section))}", 0, 2))


def _launch_text(launch: dict[str, Any]) -> str:
    variables = [f"export {name}={shlex.quote(value)}" for name, value in launch["environment"].items()]
    commands = [shlex.join(argv) for argv in launch["commands"]]
    return "\n".join(["", f"# {launch['case']}", *variables, *commands, ""])


def _case(item: Planned) -> dict[str, Any]:
    return {
        "case": item.case.name,
        "case_id": item.case.id,
        "strategy": item.case.label,
        "world_size": item.case.world_size,
        "status": "unsupported" if item.problem else "planned",
        "reason": item.problem or "",
    }


def _launches(suite: Suite, planned: Plan, out: Path) -> Iterator[dict[str, Any]]:
    """Launches of the first trial of each case; those of later rounds differ only in their folder."""
    launcher = registry.make("launchers", suite.launcher)
    for task in planned.trials:
        if task.round > 0 or task.problem:
            continue
        launch = launch_for(out / _RUN, suite, task)
        yield {
            "job": task.job.kind,
            "case": task.case.name,
            "case_id": task.case.id,
            "environment": {env.RUN_ID: _RUN, **launch.environment},
            "commands": launcher.commands(launch),
        }


def _expected(planned: Plan, out: Path) -> tuple[float | None, str]:
    """Seconds that earlier runs of the same cases took, and the basis of that estimate."""
    trials = [(task.job.kind, task.case.id) for task in planned.trials]
    medians = runs.usual_times(out, trials)
    if not medians:
        return None, (
            f"unknown: no earlier run of these cases in {out}; distbench run SUITE --set measure.trials=1 "
            "measures each of them once, and tells"
        )
    basis = "from earlier runs of the same cases"
    if missing := len(set(trials)) - len(medians):
        basis += f"; without {missing} cases that have not run yet"
    return sum(medians.get(trial, 0.0) for trial in trials), basis
