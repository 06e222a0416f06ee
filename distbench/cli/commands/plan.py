"""``distbench plan``: show the cases, time and launches of a run."""

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
from distbench.cli.interruption import print_stopped
from distbench.cli.options import flag
from distbench.cli.output import align_columns, print_json, print_text, wrap_to_terminal
from distbench.cli.own_models import constructed_models
from distbench.cli.plan_caveats import runtime_caveat, runtime_caveats
from distbench.cli.short_trials import run_short_trials
from distbench.cli.time_estimate import TimeEstimate
from distbench.core import registry
from distbench.core.case import Case, TimeLimits
from distbench.core.errors import SuiteError, UsageError
from distbench.core.grouping import group_by
from distbench.core.job import MEASURE, job_kind
from distbench.core.machine import Machine
from distbench.core.units import MISSING_TEXT, format_count, format_duration
from distbench.plan import Plan, PlannedCase, launcher_machine, make_plan, with_refusals
from distbench.plan.environments import detect_environments
from distbench.plan.time_limits import all_trial_limits, prepare_limit
from distbench.run import trial_launch
from distbench.run.user_models import user_models
from distbench.suite import Suite, load_suite
from distbench.system.machine import RUN_ID_VARIABLE

# placeholder for the folder and the ID, which a run gets when it starts
_RUN_PLACEHOLDER = "RUN"
# packages whose versions are shown for another Python environment
_SHOWN_PACKAGES = ("torch", "deepspeed")
# reasons longer than this are not repeated at each case
_MAX_STATUS_LENGTH = 60
_TRIAL_LIMITS = ("start", "build", "step", "trial")


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
    if on and estimate:
        raise UsageError("--estimate runs trials on this machine, and --on on another; use only one of them")
    loaded = load_suite(suite, options.make_overrides(set_, only, world_sizes, device, check=check, on=on))
    if on:
        overrides = queue_submission.to_run_arguments(set_, only, world_sizes, device, check=check)
        _show_submission(loaded, out / _RUN_PLACEHOLDER, nodes, overrides, as_json=as_json)
        return 0
    machine = detect_environments(loaded, launcher_machine(loaded))
    planned = _with_models(loaded, make_plan(loaded, machine), machine, quiet=as_json)
    expected = TimeEstimate.from_runs(planned, loaded, out)
    if estimate and expected.cases_without_time:
        short = run_short_trials(loaded, expected.cases_without_time, out, context.obj)
        if short.stopped:
            return print_stopped(short.stopped, "")
        expected = expected.add_short_trials(short)
    limits = all_trial_limits(loaded.limits, planned.trials, loaded.measure)
    cases = [item.case for item in planned.cases if item.problem is None]
    preparing = prepare_limit(loaded.limits, cases)
    limit = _upper_bound_s(preparing, limits, expected.max_repeats)
    if as_json:
        print_json(
            {
                "suite": loaded.to_resolved(),
                "device": machine.device,
                "devices": machine.devices,
                "environments": {
                    name: {"python": each.python, "packages": each.packages}
                    for name, each in machine.environments.items()
                },
                "cases": [_case_json(item, expected) for item in planned.cases],
                "expected_s": expected.total_s,
                "expected_note": expected.basis_text(),
                "repeats_at_most": expected.max_repeats,
                "repeats_at_most_s": expected.max_repeats_s,
                "at_most_s": limit,
                "prepare_at_most_s": preparing,
                "trials": [
                    {
                        "job": task.job.kind,
                        "case_id": task.case.id,
                        "round": task.round,
                        "predicted_s": job_kind(task.job.kind).predicted_seconds(task),
                        "limits": {key: getattr(own, key) for key in _TRIAL_LIMITS},
                    }
                    for task, own in zip(planned.trials, limits, strict=True)
                ],
                "launches": list(_first_launches(loaded, planned, out)),
            }
        )
        return _exit_code(expected)
    _print_size(loaded, machine, planned)
    print_text(wrap_to_terminal(f"expected time: {expected.total_text()}", 0, 2))
    if expected.max_repeats:
        print_text(wrap_to_terminal(expected.repeats_text(), 0, 2))
    _print_predictions(planned)
    print_text(wrap_to_terminal(_limit_text(preparing, limits, limit), 0, 2))
    _print_cases(loaded, planned, expected)
    if commands:
        print_text(
            f"\nlaunch of each trial ({_RUN_PLACEHOLDER} stands for the run's folder and ID; round 0 of each "
            "case):"
        )
        print_text("".join(map(_launch_text, _first_launches(loaded, planned, out))))
    else:
        print_text("\n--commands shows what would be launched.")
    return _exit_code(expected)


def _with_models(suite: Suite, planned: Plan, machine: Machine, *, quiet: bool) -> Plan:
    """Construct user models once; mark the cases of *planned* that they refuse.

    This imports torch in a subprocess.

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
        suite.source_map.mistake(("workload", model.name), each.problem)
        for model, each in found
        if each.problem
    ]
    if wrong:
        raise SuiteError(wrong)

    def refusal(case: Case) -> str | None:
        told = (each.refused.get(case.precision.compute) for model, each in found if model == case.workload)
        return next(told, None)

    return with_refusals(suite, planned, machine, refusal)


def _exit_code(expected: TimeEstimate) -> int:
    """1 if a short trial failed, as the case would in a run; otherwise 0."""
    return 1 if expected.any_failed else 0


def _upper_bound_s(preparing: float, limits: Sequence[TimeLimits], repeats: int) -> float:
    """Seconds after which a run is over, if everything hangs."""
    longest = max((own.trial for own in limits), default=0.0)
    return preparing + math.fsum(own.trial for own in limits) + repeats * longest


def _limit_text(preparing: float, limits: Sequence[TimeLimits], limit: float) -> str:
    text = f"time limit: {format_duration(limit)}, if everything hangs"
    if not limits:
        return text
    spans = []
    for key in _TRIAL_LIMITS:
        least, most = (format_duration(end(getattr(own, key) for own in limits)) for end in (min, max))
        spans.append(f"{key} {least if least == most else f'{least} to {most}'}")
    how = "from the size of the case; set them with limits in the suite"
    once = f"preparation {format_duration(preparing)}; per trial:"
    return f"{text} ({once} {', '.join(spans)}, {how})"


def _show_submission(
    suite: Suite, folder: Path, nodes: int | None, overrides: list[str], *, as_json: bool
) -> None:
    """Show what would be submitted; the devices there, and thus the cases, are not known here."""
    submission = queue_submission.resume_submission(suite, folder.resolve(), nodes, overrides=overrides)
    if as_json:
        print_json({"suite": suite.to_resolved(), "submission": dataclasses.asdict(submission)})
        return
    print_text(
        f"{suite.name}: submitted to {suite.launcher.name}; the cases depend on the devices of the "
        f"nodes that it assigns (run distbench plan there)\n\nsubmission ({_RUN_PLACEHOLDER} stands for "
        f"the run's folder):\n\n{queue_submission.to_shell(submission)}"
    )


def _print_size(suite: Suite, machine: Machine, planned: Plan) -> None:
    trials = Counter(task.job.kind for task in planned.trials)
    others = "".join(
        f"{format_count(count, f'{kind} trial')}, " for kind, count in trials.items() if kind != MEASURE
    )
    print_text(
        f"{suite.name}: {format_count(len(planned.cases), 'case')}, {format_count(trials[MEASURE], 'trial')} "
        f"({suite.measure.trials} per case, {suite.measure.order}), "
        f"{others}{machine.device} x {machine.devices}"
    )
    for name, each in machine.environments.items():
        versions = [f"{package} {each.packages.get(package, 'not installed')}" for package in _SHOWN_PACKAGES]
        print_text(wrap_to_terminal(f"@{name}: Python {each.python}, {', '.join(versions)}", 0, 2))


def _print_predictions(planned: Plan) -> None:
    for word, tasks in group_by(planned.trials, lambda task: task.job.kind).items():
        if foretold := job_kind(word).plan_note(tasks):
            print_text(wrap_to_terminal(f"{word}: {foretold}", 0, 2))


def _print_cases(suite: Suite, planned: Plan, expected: TimeEstimate) -> None:
    rows = [("CASE", "ID", "A TRIAL", "STATUS")]
    first: dict[str | None, str] = {}
    for item in planned.cases:
        name = first.setdefault(item.problem, item.case.name)
        status = (
            _status(item, expected) if name == item.case.name else _status_or_reference(item, expected, name)
        )
        rows.append((item.case.name, item.case.id, _time_text(item, expected), status))
    is_timed = any(time not in ("", MISSING_TEXT) for _, _, time, _ in rows[1:])
    shown = rows if is_timed else [(name, id_, status) for name, id_, _, status in rows]
    print_text("\n" + "\n".join(align_columns(shown)))
    for text in runtime_caveats(suite, planned):
        print_text("\n" + wrap_to_terminal(text, 0, 2))


def _time_text(item: PlannedCase, expected: TimeEstimate) -> str:
    seconds, _ = expected.trial_time(item.case)
    return "" if item.problem else MISSING_TEXT if seconds is None else format_duration(seconds)


def _status(item: PlannedCase, expected: TimeEstimate) -> str:
    if item.problem:
        return f"unsupported: {item.problem}"
    return expected.short_trial_failures.get(item.case.name, "planned")


def _status_or_reference(item: PlannedCase, expected: TimeEstimate, first: str) -> str:
    """Status of a case with its problem.

    A long problem is shown only at *first*, the first case with it; later cases refer to that one.
    """
    text = _status(item, expected)
    return f"unsupported: as {first}" if item.problem and len(item.problem) > _MAX_STATUS_LENGTH else text


def _launch_text(launch: dict[str, Any]) -> str:
    variables = [f"export {name}={shlex.quote(value)}" for name, value in launch["environment"].items()]
    commands = [shlex.join(argv) for argv in launch["commands"]]
    return "\n".join(["", f"# {launch['case']}", *variables, *commands, ""])


def _case_json(item: PlannedCase, expected: TimeEstimate) -> dict[str, Any]:
    seconds, note = (None, "unsupported") if item.problem else expected.trial_time(item.case)
    return {
        "case": item.case.name,
        "case_id": item.case.id,
        "strategy": item.case.label,
        "world_size": item.case.world_size,
        "status": "unsupported" if item.problem else "planned",
        "reason": item.problem or "",
        "later": runtime_caveat(item),
        "trial_s": seconds,
        "trial_note": note,
    }


def _first_launches(suite: Suite, planned: Plan, out: Path) -> Iterator[dict[str, Any]]:
    """Launches of the first trial of each case; those of later rounds differ only in their folder."""
    launcher = registry.create_plugin("launchers", suite.launcher)
    for task in planned.trials:
        if task.round > 0 or task.problem:
            continue
        launch = trial_launch(out / _RUN_PLACEHOLDER, suite, task)
        yield {
            "job": task.job.kind,
            "case": task.case.name,
            "case_id": task.case.id,
            "environment": {RUN_ID_VARIABLE: _RUN_PLACEHOLDER, **launch.environment},
            "commands": launcher.commands(launch),
        }
