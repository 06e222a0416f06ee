"""Show a plan as text or JSON: cases, times, limits, and what would be launched."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator
from typing import Any

from distbench.cli import queue_submission
from distbench.cli.output import align_columns, print_json, print_text, wrap_to_terminal
from distbench.cli.plan_peaks import (
    PEAK_TEXT,
    peak_json,
    peak_text,
)
from distbench.cli.plan_theory import STATES_TEXT, case_theory, theory_json
from distbench.cli.planned_run import PlannedRun
from distbench.cli.queue_submission import RUN_PLACEHOLDER
from distbench.cli.time_estimate import TimeEstimate
from distbench.core import registry
from distbench.core.grouping import group_by, group_pairs
from distbench.core.job import MEASURE, job_kind
from distbench.core.units import MISSING_TEXT, format_count, format_duration
from distbench.launchers.base import Submission
from distbench.plan import Plan, PlannedCase
from distbench.plan.time_limits import trial_limits
from distbench.run import trial_launch
from distbench.run.memory_fit import misfit_text, missing_peak_texts
from distbench.strategies.base import Strategy
from distbench.suite import Suite
from distbench.system.machine import RUN_ID_VARIABLE

# packages whose versions are shown for another Python environment
_SHOWN_PACKAGES = ("torch", "deepspeed")
# reasons longer than this are not repeated at each case
_MAX_STATUS_LENGTH = 60
_TRIAL_LIMITS = ("start", "build", "step", "trial")


def plan_json(planned: PlannedRun) -> dict[str, Any]:
    """Return *planned* as ``--json`` prints it."""
    suite, machine, expected = planned.suite, planned.machine, planned.expected
    share = suite.limits.predicted_memory or 1.0
    return {
        "suite": suite.to_resolved(),
        "device": machine.device,
        "devices": machine.devices,
        "nodes": machine.nodes,
        "gpu_type": machine.gpu_type or None,
        "environments": {
            name: {"python": each.python, "packages": each.packages}
            for name, each in machine.environments.items()
        },
        "cases": [
            {
                **_case_json(item, expected, planned.predicted_misfit(item)),
                **({} if planned.is_at_hand else theory_json(item)),
                **({} if planned.peaks is None else peak_json(item, machine, planned.peaks, share)),
                **(planned.predictions.to_json(item.case.id) if planned.predictions else {}),
            }
            for item in planned.plan.cases
        ],
        "expected_s": expected.total_s,
        "expected_note": expected.basis_text(),
        "repeats_at_most": expected.max_repeats,
        "repeats_at_most_s": expected.max_repeats_s,
        "at_most_s": planned.upper_bound_s,
        "prepare_at_most_s": planned.prepare_limit_s,
        "trials": [
            {
                "job": task.job.kind,
                "case_id": task.case.id,
                "round": task.round,
                "predicted_s": job_kind(task.job.kind).predicted_seconds(task),
                "limits": {key: getattr(own, key) for key in _TRIAL_LIMITS},
            }
            for task, own in zip(planned.plan.trials, planned.trial_limits, strict=True)
        ],
        "launches": list(_first_launches(planned)) if planned.is_at_hand else [],
    }


def print_plan(planned: PlannedRun, submission: Submission | None, *, commands: bool) -> None:
    """Print *planned* as text, with *submission*; *commands*: with what would be launched."""
    expected = planned.expected
    _print_size(planned)
    print_text(wrap_to_terminal(f"expected time: {expected.total_text()}", 0, 2))
    if expected.max_repeats:
        print_text(wrap_to_terminal(expected.repeats_text(), 0, 2))
    _print_predictions(planned.plan)
    print_text(wrap_to_terminal(_limit_text(planned), 0, 2))
    _print_cases(planned)
    if not commands:
        if planned.is_at_hand:
            print_text("\n--commands shows what would be launched.")
        if submission:
            print_text(_submission_text(submission))
        return
    print_text(
        f"\nlaunch of each trial ({RUN_PLACEHOLDER} stands for the run's folder and ID; round 0 of each "
        "case):"
    )
    print_text("".join(map(_launch_text, _first_launches(planned))))


def _limit_text(planned: PlannedRun) -> str:
    limits = planned.trial_limits
    once = f"preparation {format_duration(planned.prepare_limit_s)}"
    spans = []
    for key in _TRIAL_LIMITS if limits else ():
        least, most = (format_duration(end(getattr(own, key) for own in limits)) for end in (min, max))
        spans.append(f"{key} {least if least == most else f'{least} to {most}'}")
    each = f"; of a trial: {', '.join(spans)}" if spans else ""
    return f"time limits: {once}{each} (limits in the suite; by default from the size of the case)"


def print_submission(suite: Suite, submission: Submission, *, as_json: bool) -> None:
    """Show what would be submitted; the devices there, and thus the cases, are not known here."""
    if as_json:
        print_json({"suite": suite.to_resolved(), **submission_json(submission)})
        return
    print_text(
        wrap_to_terminal(
            f"{suite.name}: submitted to {suite.launcher.name}; the cases depend on the devices of the nodes "
            "that it assigns (--gpus-per-node N lists them)",
            0,
            2,
        )
    )
    print_text(_submission_text(submission))


def submission_json(submission: Submission | None) -> dict[str, Any]:
    """Return *submission* as ``--json`` prints it."""
    return {"submission": {"command": submission.command, "text": submission.text}} if submission else {}


def _submission_text(submission: Submission) -> str:
    return (
        f"\nsubmission ({RUN_PLACEHOLDER} stands for the run's folder):\n\n"
        f"{queue_submission.to_shell(submission)}"
    )


def _print_size(planned: PlannedRun) -> None:
    suite, machine = planned.suite, planned.machine
    trials = Counter(task.job.kind for task in planned.plan.trials)
    others = "".join(
        f"{format_count(count, f'{kind} trial')}, " for kind, count in trials.items() if kind != MEASURE
    )
    print_text(
        f"{suite.name}: {format_count(len(planned.plan.cases), 'case')}, "
        f"{format_count(trials[MEASURE], 'trial')} ({suite.measure.trials} per case, {suite.measure.order}), "
        f"{others}{machine.device} x {machine.devices}"
    )
    if not planned.is_at_hand:
        gpus = format_count(machine.devices_per_node, f"{machine.gpu_type} GPU".strip())
        of_gpus = "host memory" if machine.gpu_type else "memory"
        text = (
            f"machine: {format_count(machine.nodes, 'node')} with {gpus} each, as given; assumed there: the "
            f"packages that cases need, the CPU cores of this machine, and enough {of_gpus}"
        )
        print_text(wrap_to_terminal(text, 0, 2))
    for name, each in machine.environments.items():
        versions = [f"{package} {each.packages.get(package, 'not installed')}" for package in _SHOWN_PACKAGES]
        print_text(wrap_to_terminal(f"@{name}: Python {each.python}, {', '.join(versions)}", 0, 2))


def _print_predictions(planned: Plan) -> None:
    for word, tasks in group_by(planned.trials, lambda task: task.job.kind).items():
        if note := job_kind(word).plan_note(tasks):
            print_text(wrap_to_terminal(f"{word}: {note}", 0, 2))


def _print_cases(planned: PlannedRun) -> None:
    columns, texts = _case_columns(planned)
    rows = [("CASE", "ID", *columns, "STATUS")]
    for number, (item, status) in enumerate(_statuses(planned)):
        values = (column[number] for column in columns.values())
        rows.append((item.case.name, item.case.id, *values, status))
    print_text("\n" + "\n".join(align_columns(rows)))
    for text in (*texts, *runtime_caveats(planned.suite, planned.plan)):
        print_text("\n" + wrap_to_terminal(text, 0, 2))


def _case_columns(planned: PlannedRun) -> tuple[dict[str, list[str]], list[str]]:
    """Columns with what is known of the cases, by their titles, and texts that explain them."""
    cases, columns, texts = planned.plan.cases, {}, []
    if planned.is_at_hand:
        times = [_time_text(item, planned.expected) for item in cases]
        if any(time not in ("", MISSING_TEXT) for time in times):
            columns["A TRIAL"] = times
    elif planned.predictions is None:
        theory = [case_theory(item).texts for item in cases]
        columns |= {"STATES": [states for states, _ in theory], "TRAFFIC": [sent for _, sent in theory]}
        texts.append(STATES_TEXT)
    if found := planned.predictions:
        columns |= found.columns([item.case.id for item in cases])
        texts += found.notes
    if planned.peaks is not None:
        columns["TRACED PEAK" if planned.predictions else "PEAK"] = [
            peak_text(item, planned.peaks) for item in cases
        ]
        texts += [PEAK_TEXT, *missing_peak_texts([item.case for item in cases], planned.peaks)]
    return columns, texts


def _statuses(planned: PlannedRun) -> Iterator[tuple[PlannedCase, str]]:
    """Yield each case with its status; a long problem stands in full only at the first case that has it."""
    first: dict[str | None, str] = {}
    for item in planned.plan.cases:
        name = first.setdefault(item.problem, item.case.name)
        status = (
            _status(item, planned) if name == item.case.name else _status_or_reference(item, planned, name)
        )
        yield item, status


def _time_text(item: PlannedCase, expected: TimeEstimate) -> str:
    seconds, _ = expected.trial_time(item.case)
    return "" if item.problem else MISSING_TEXT if seconds is None else format_duration(seconds)


def _status(item: PlannedCase, planned: PlannedRun) -> str:
    if item.problem:
        return f"unsupported: {item.problem}"
    if misfit := misfit_text(item.case, planned.machine, planned.peaks or {}):
        return misfit
    if misfit := planned.predicted_misfit(item):
        return misfit
    return planned.expected.short_trial_failures.get(item.case.name, "planned")


def _status_or_reference(item: PlannedCase, planned: PlannedRun, first: str) -> str:
    """Status of a case with its problem.

    A long problem is shown only at *first*, the first case with it; later cases refer to that one.
    """
    text = _status(item, planned)
    return f"unsupported: as {first}" if item.problem and len(item.problem) > _MAX_STATUS_LENGTH else text


def _launch_text(launch: dict[str, Any]) -> str:
    variables = [f"export {name}={shlex.quote(value)}" for name, value in launch["environment"].items()]
    commands = [shlex.join(argv) for argv in launch["commands"]]
    return "\n".join(["", f"# {launch['case']}", *variables, *commands, ""])


def _case_json(item: PlannedCase, expected: TimeEstimate, misfit: str) -> dict[str, Any]:
    seconds, note = (None, "unsupported") if item.problem else expected.trial_time(item.case)
    return {
        "case": item.case.name,
        "case_id": item.case.id,
        "strategy": item.case.label,
        "world_size": item.case.world_size,
        "status": "unsupported" if item.problem else "planned",
        "reason": item.problem or misfit,
        "later": _runtime_caveat(item),
        "trial_s": seconds,
        "trial_note": note,
    }


def _first_launches(planned: PlannedRun) -> Iterator[dict[str, Any]]:
    """Launches of the first trial of each case; those of later rounds differ only in their folder."""
    launcher = registry.create_plugin("launchers", planned.suite.launcher)
    for task in planned.plan.trials:
        if task.round > 0 or task.problem:
            continue
        limits = trial_limits(planned.suite.limits, task, planned.suite.measure)
        launch = trial_launch(planned.out / RUN_PLACEHOLDER, planned.suite, task, limits)
        yield {
            "job": task.job.kind,
            "case": task.case.name,
            "case_id": task.case.id,
            "environment": {RUN_ID_VARIABLE: RUN_PLACEHOLDER, **launch.environment},
            "commands": launcher.commands(launch),
        }


def _runtime_caveat(item: PlannedCase) -> str:
    """Caveat on *item* that only a run resolves; empty: none, or it can't run."""
    strategy: Strategy = registry.create_plugin("strategies", item.case.strategy)
    return "" if item.problem else strategy.undetermined


def runtime_caveats(suite: Suite, planned: Plan) -> Iterator[str]:
    """Facts that are known only at run time.

    Of the cases, each text once with their labels, and of the kinds of jobs.
    """
    for text, labels in group_pairs(
        (_runtime_caveat(item), item.case.label) for item in planned.cases
    ).items():
        if text:
            yield f"{', '.join(dict.fromkeys(labels))}: {text}"
    for word, section in suite.jobs.items():
        if of_kind := job_kind(word).follow_up_text:
            yield f"{word}: {of_kind.format_map(vars(section))}"
