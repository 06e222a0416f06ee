"""``distbench plan``: what a run would do."""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from distbench.cli import options, queue_submission
from distbench.cli.interruption import ended
from distbench.cli.options import flag
from distbench.cli.output import columns, say, say_json, wrapped
from distbench.cli.own_models import constructed_models
from distbench.cli.plan_caveats import later, later_texts
from distbench.cli.short_trials import short_trials
from distbench.cli.time_estimate import Expected
from distbench.core import registry
from distbench.core.case import Case, Limits
from distbench.core.errors import SuiteError, UsageError
from distbench.core.grouping import grouped
from distbench.core.job import MEASURE, job_kind
from distbench.core.machine import Machine
from distbench.core.units import ABSENT, count_text, duration_text
from distbench.plan import Plan, Planned, machine_of, make, refusing
from distbench.plan.environments import with_environments
from distbench.plan.time_limits import limits_of_all, prepare_limit
from distbench.run import launch_for
from distbench.run.user_models import user_models
from distbench.suite import Suite, load
from distbench.system.machine import RUN_ID_VARIABLE

# stands for the folder and the ID, which a run gets when it starts
_RUN = "RUN"
# packages whose versions are told of another Python environment
_TOLD = ("torch", "deepspeed")
# a reason that is no longer stands at each case
_SHORT = 60
_OF_TRIALS = ("start", "build", "step", "trial")


def plan(
    context: typer.Context,
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
    estimate: Annotated[
        bool,
        flag("--estimate", text="Run a short trial of each case that has not run yet, to tell the time."),
    ] = False,
    as_json: options.Json = False,
) -> int:
    """Show what a run would do, and how long it takes.

    Nothing is launched without --estimate. A model of your own is constructed once, in a process of its own.
    """
    if on and estimate:
        raise UsageError("--estimate runs trials here, and --on elsewhere; leave one of them out")
    loaded = load(suite, options.overrides(set_, only, world_sizes, device, check=check, on=on))
    if on:
        overrides = queue_submission.override_arguments(set_, only, world_sizes, device, check=check)
        _show_submission(loaded, out / _RUN, nodes, overrides, as_json=as_json)
        return 0
    machine = with_environments(loaded, machine_of(loaded))
    planned = _with_models(loaded, make(loaded, machine), machine, quiet=as_json)
    expected = Expected.from_runs(planned, loaded, out)
    if estimate and expected.unknown:
        short = short_trials(loaded, expected.unknown, out, context.obj)
        if short.stopped:
            return ended(short.stopped, "")
        expected = expected.with_short(short)
    limits = limits_of_all(loaded.limits, planned.trials, loaded.measure)
    cases = [item.case for item in planned.cases if item.problem is None]
    preparing = prepare_limit(loaded.limits, cases)
    limit = _at_most(preparing, limits, expected.repeats)
    if as_json:
        say_json(
            {
                "suite": loaded.resolved(),
                "device": machine.device,
                "devices": machine.devices,
                "environments": {
                    name: {"python": each.python, "packages": each.packages}
                    for name, each in machine.environments.items()
                },
                "cases": [_case(item, expected) for item in planned.cases],
                "expected_s": expected.total,
                "expected_note": expected.note(),
                "repeats_at_most": expected.repeats,
                "repeats_at_most_s": expected.repeats_s,
                "at_most_s": limit,
                "prepare_at_most_s": preparing,
                "trials": [
                    {
                        "job": task.job.kind,
                        "case_id": task.case.id,
                        "round": task.round,
                        "predicted_s": job_kind(task.job.kind).predicted(task),
                        "limits": {key: getattr(own, key) for key in _OF_TRIALS},
                    }
                    for task, own in zip(planned.trials, limits, strict=True)
                ],
                "launches": list(_launches(loaded, planned, out)),
            }
        )
        return _code(expected)
    _print_size(loaded, machine, planned)
    say(wrapped(f"expected time: {expected.text()}", 0, 2))
    if expected.repeats:
        say(wrapped(expected.repeats_text(), 0, 2))
    _print_foretold(planned)
    say(wrapped(_limit_text(preparing, limits, limit), 0, 2))
    _print_cases(loaded, planned, expected)
    if commands:
        say(f"\nlaunch of each trial ({_RUN} stands for the run's folder and ID; round 0 of each case):")
        say("".join(map(_launch_text, _launches(loaded, planned, out))))
    else:
        say("\n--commands shows what would be launched.")
    return _code(expected)


def _with_models(suite: Suite, planned: Plan, machine: Machine, *, quiet: bool) -> Plan:
    """*planned* without the cases that a model of the user's own does not allow: each is constructed once.

    That takes the import of torch.

    Raises:
        SuiteError: one can't be imported or constructed.
    """
    cases = [item.case for item in planned.cases]
    models = user_models(cases)
    if not models:
        return planned
    computes = list(dict.fromkeys(case.precision.compute for case in cases))
    found = list(zip(models, constructed_models(models, machine.device, computes, quiet=quiet), strict=False))
    wrong = [
        suite.places.mistake(("workload", model.name), each.problem) for model, each in found if each.problem
    ]
    if wrong:
        raise SuiteError(wrong)

    def refusal(case: Case) -> str | None:
        told = (each.refused.get(case.precision.compute) for model, each in found if model == case.workload)
        return next(told, None)

    return refusing(suite, planned, machine, refusal)


def _code(expected: Expected) -> int:
    """1 if a case failed that was tried: it would in a run."""
    return 1 if expected.has_failed else 0


def _at_most(preparing: float, limits: Sequence[Limits], repeats: int) -> float:
    """Seconds after which a run is over, if everything hangs."""
    longest = max((own.trial for own in limits), default=0.0)
    return preparing + math.fsum(own.trial for own in limits) + repeats * longest


def _limit_text(preparing: float, limits: Sequence[Limits], limit: float) -> str:
    text = f"stopped at the latest after {duration_text(limit)}: only if everything hangs"
    if not limits:
        return text
    spans = []
    for key in _OF_TRIALS:
        least, most = (duration_text(end(getattr(own, key) for own in limits)) for end in (min, max))
        spans.append(f"{key} {least if least == most else f'{least} to {most}'}")
    how = "by its size; limits in the suite sets them"
    once = f"the limit of preparing is {duration_text(preparing)}, and those of a trial are"
    return f"{text}, as {once} {', '.join(spans)} ({how})"


def _show_submission(
    suite: Suite, folder: Path, nodes: int | None, overrides: list[str], *, as_json: bool
) -> None:
    """Show what would be handed to an engine; the devices there, and so the cases, are not known here."""
    submission = queue_submission.resuming(suite, folder.resolve(), nodes, overrides=overrides)
    if as_json:
        say_json({"suite": suite.resolved(), "submission": dataclasses.asdict(submission)})
        return
    say(
        f"{suite.name}: handed to {suite.launcher.name}, which chooses the nodes; the "
        "cases depend on their devices: distbench plan there shows them\n\n"
        f"what is handed over ({_RUN} stands for the run's folder):\n\n"
        f"{queue_submission.shell_text(submission)}"
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
    for name, each in machine.environments.items():
        versions = [f"{package} {each.packages.get(package, 'not installed')}" for package in _TOLD]
        say(wrapped(f"@{name}: Python {each.python}, {', '.join(versions)}", 0, 2))


def _print_foretold(planned: Plan) -> None:
    for word, tasks in grouped(planned.trials, lambda task: task.job.kind).items():
        if foretold := job_kind(word).foretold(tasks):
            say(wrapped(f"{word}: {foretold}", 0, 2))


def _print_cases(suite: Suite, planned: Plan, expected: Expected) -> None:
    rows = [("CASE", "ID", "A TRIAL", "STATUS")]
    first: dict[str | None, str] = {}
    for item in planned.cases:
        name = first.setdefault(item.problem, item.case.name)
        status = _status(item, expected) if name == item.case.name else _repeated(item, expected, name)
        rows.append((item.case.name, item.case.id, _time_of(item, expected), status))
    is_timed = any(time not in ("", ABSENT) for _, _, time, _ in rows[1:])
    shown = rows if is_timed else [(name, id_, status) for name, id_, _, status in rows]
    say("\n" + "\n".join(columns(shown)))
    for text in later_texts(suite, planned):
        say("\n" + wrapped(text, 0, 2))


def _time_of(item: Planned, expected: Expected) -> str:
    seconds, _ = expected.of(item.case)
    return "" if item.problem else ABSENT if seconds is None else duration_text(seconds)


def _status(item: Planned, expected: Expected) -> str:
    if item.problem:
        return f"unsupported: {item.problem}"
    return expected.untimed.get(item.case.name, "planned")


def _repeated(item: Planned, expected: Expected, first: str) -> str:
    """The status of a case with the problem of the case *first*, whose reason stands there if it is long."""
    text = _status(item, expected)
    return f"unsupported: as {first}" if item.problem and len(item.problem) > _SHORT else text


def _launch_text(launch: dict[str, Any]) -> str:
    variables = [f"export {name}={shlex.quote(value)}" for name, value in launch["environment"].items()]
    commands = [shlex.join(argv) for argv in launch["commands"]]
    return "\n".join(["", f"# {launch['case']}", *variables, *commands, ""])


def _case(item: Planned, expected: Expected) -> dict[str, Any]:
    seconds, note = (None, "unsupported") if item.problem else expected.of(item.case)
    return {
        "case": item.case.name,
        "case_id": item.case.id,
        "strategy": item.case.label,
        "world_size": item.case.world_size,
        "status": "unsupported" if item.problem else "planned",
        "reason": item.problem or "",
        "later": later(item),
        "trial_s": seconds,
        "trial_note": note,
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
            "environment": {RUN_ID_VARIABLE: _RUN, **launch.environment},
            "commands": launcher.commands(launch),
        }
