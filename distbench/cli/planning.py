"""``distbench plan``: what a run would do, without doing it."""

from __future__ import annotations

import json
import shlex
import statistics
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from distbench import env, plan, registry, spec
from distbench.cli.printing import columns, say, say_json
from distbench.job import FOLDERS, Kind
from distbench.launchers.base import Launch, Launcher
from distbench.units import duration_text

# stands for the folder and the id, which a run gets when it begins
_RUN = "RUN"

_OTHERS: dict[Kind, str] = {"check": "trainings that check them", "converge": "trainings to a target"}


def show_plan(file: Path, overrides: spec.Overrides, *, out: Path, as_json: bool) -> int:
    """Print the plan of a suite."""
    suite = spec.load(file, overrides)
    machine = env.detect(suite.device)
    planned = plan.make(suite, machine)
    expected, note = _expected(planned, out)
    if as_json:
        say_json(
            {
                "suite": suite.resolved(),
                "device": machine.device,
                "devices": machine.devices,
                "cases": [_case(item) for item in planned.cases],
                "expected_s": expected,
                "expected_note": note,
                "at_most_s": _at_most(suite, planned),
                "trials": [
                    {"job": task.job.kind, "case_id": task.case.id, "round": task.round}
                    for task in planned.trials
                ],
                "launches": list(_launches(suite, planned, out)),
            }
        )
        return 0
    _print(suite, machine, planned, out)
    say(f"\nexpected time: {note if expected is None else f'{duration_text(expected)} ({note})'}")
    say(f"at most, by the limits: {duration_text(_at_most(suite, planned))}")
    return 0


def _print(suite: spec.Suite, machine: env.Machine, planned: plan.Plan, out: Path) -> None:
    kinds = Counter(task.job.kind for task in planned.trials)
    others = [f"{kinds[kind]} {what}" for kind, what in _OTHERS.items() if kinds[kind]]
    say(
        f"{suite.name}: {len(planned.cases)} cases, {kinds['measure']} trials "
        f"({suite.measure.trials} a case, {suite.measure.order}), "
        f"{''.join(f'{told}, ' for told in others)}{machine.device} x {machine.devices}\n"
    )
    rows = [("CASE", "ID", "STATUS")]
    rows += [
        (item.case.name, item.case.id, f"unsupported: {item.problem}" if item.problem else "planned")
        for item in planned.cases
    ]
    say("\n".join(columns(rows)))
    say(f"\nwhat each trial launches ({_RUN}: the run's folder and id; round 0 of each case):")
    say("".join(_launch_text(launch) for launch in _launches(suite, planned, out)))


def _launch_text(launch: dict[str, Any]) -> str:
    variables = [f"export {name}={shlex.quote(value)}" for name, value in launch["environment"].items()]
    commands = [shlex.join(argv) for argv in launch["commands"]]
    return "\n".join(["", f"# {launch['case']}", *variables, *commands, ""])


def _case(item: plan.Planned) -> dict[str, Any]:
    return {
        "case": item.case.name,
        "case_id": item.case.id,
        "strategy": item.case.label,
        "world_size": item.case.world_size,
        "status": "unsupported" if item.problem else "planned",
        "reason": item.problem or "",
    }


def _launches(suite: spec.Suite, planned: plan.Plan, out: Path) -> Iterator[dict[str, Any]]:
    """Yield what the first trial of each case launches; of the others only the folder differs."""
    from distbench.run import launch_for

    launcher: Launcher = registry.make("launchers", suite.launcher)
    for task in planned.trials:
        if task.round > 0 or task.problem:
            continue
        launch: Launch = launch_for(out / _RUN, task)
        yield {
            "job": task.job.kind,
            "case": task.case.name,
            "case_id": task.case.id,
            "environment": {env.RUN_ID: _RUN, **launch.environment},
            "commands": launcher.commands(launch),
        }


def _at_most(suite: spec.Suite, planned: plan.Plan) -> float:
    return suite.limits.prepare + len(planned.trials) * suite.limits.trial


def _expected(planned: plan.Plan, out: Path) -> tuple[float | None, str]:
    """Return the seconds that earlier runs of the same cases took, and what that rests on."""
    wanted = {_place(task.job.kind, task.case.id) for task in planned.trials}
    known = {place: statistics.median(times) for place, times in _earlier(out, wanted).items()}
    if not known:
        return None, "unknown: no earlier run of these cases"
    missing = len(wanted - known.keys())
    seconds = sum(known.get(_place(task.job.kind, task.case.id), 0.0) for task in planned.trials)
    note = "from earlier runs of the same cases"
    return seconds, note if not missing else f"{note}; without {missing} cases that have not run yet"


def _place(kind: str, case_id: str) -> tuple[str, str]:
    return FOLDERS[kind], case_id


def _earlier(out: Path, wanted: set[tuple[str, str]]) -> dict[tuple[str, str], list[float]]:
    found: dict[tuple[str, str], list[float]] = {}
    for file in out.glob("*/*/*/*/record.json"):
        place = file.parents[2].name, file.parent.parent.name.rpartition("-")[2]
        if place not in wanted:
            continue
        try:
            record = json.loads(file.read_text(encoding="utf-8"))
            if record["status"] == "measured":
                found.setdefault(place, []).append(float(record["wall_s"]))
        except (OSError, ValueError, KeyError, TypeError):
            # a guide only: what can't be read is no help, and show and report say what is wrong
            continue
    return found
