"""``distbench init``: a first suite."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from distbench.cli.options import DEFAULT_RUNS_FOLDER, OutOption, argument, option, parse_counts, parse_option
from distbench.cli.output import print_note, print_text
from distbench.cli.suite_template import (
    SUITE_GOALS,
    UNKNOWN_SHAPE_ADVICE,
    SuiteAnswers,
    is_user_model,
    model_problem,
    render_suite,
)
from distbench.core.errors import SuiteError, UsageError, did_you_mean

if TYPE_CHECKING:
    from distbench.cli.suite_draft import SuiteDraft

_PROMPTS = {
    "model": "Model: a preset of the transformer (tiny, gpt2-small, 1b, ...) or package.module:callable",
    "devices": "Numbers of devices, such as 1,2,4; auto: all of them",
    "goal": f"Goal: {', '.join(SUITE_GOALS)}",
}
_DEFAULTS = {"model": "tiny", "devices": "auto", "goal": "throughput"}


def init(
    file: Annotated[Path, argument("[FILE]", "Suite to write (default: suite.yaml).")] = Path("suite.yaml"),
    model: Annotated[
        str, option("--model", "MODEL", "Preset of the transformer, or package.module:callable.")
    ] = "",
    devices: Annotated[str, option("--devices", "N,N", "Numbers of devices: 1,2,4, or auto.")] = "",
    goal: Annotated[str, option("--goal", "GOAL", "throughput, memory, scaling or gate.")] = "",
    source: Annotated[
        str,
        option("--from", "FROM", "Measured script, or file of another framework, to compare."),
    ] = "",
    out: OutOption = DEFAULT_RUNS_FOLDER,
) -> int:
    """Write a first suite, with comments."""
    from distbench.suite import parse_suite_text
    from distbench.system.files import infrastructure_errors, write_atomic

    if source and (devices or goal):
        raise UsageError(
            f"{'--devices' if devices else '--goal'}: leave it out beside --from, which decides it"
        )
    if file.exists():
        raise UsageError(f"{file}: already exists; choose another file: distbench init FILE")
    if not file.absolute().parent.is_dir():
        raise UsageError(f"{file}: the folder {file.parent} does not exist; create it first")
    if source:
        suite = _draft(source, out, model).render(shlex.quote(str(file)))
    else:
        given = {"model": model, "devices": devices, "goal": goal}
        answers = _to_answers(
            {**_ask_missing(given), **{key: value for key, value in given.items() if value}}
        )
        shape = _shape(answers.model) if is_user_model(answers.model) else None
        suite = render_suite(dataclasses.replace(answers, shape=shape), shlex.quote(str(file)))
    # the output is a suite, whatever the answers
    try:
        parse_suite_text(suite, file=str(file))
    except SuiteError as error:
        if not source:
            raise
        raise UsageError(f"--from: {source} can't be carried over, as no suite has this: {error}") from error
    with infrastructure_errors(file):
        write_atomic(file, suite)
    print_text(f"{file}: written. See what it would run with: distbench plan {shlex.quote(str(file))}")
    return 0


def _draft(source: str, out: Path, model: str) -> SuiteDraft:
    """Suite for the training of *source*, a measured script or a configuration file."""
    from distbench.cli.configuration_suite import draft_from_file
    from distbench.cli.script_suite import draft_from_run
    from distbench.record import catalog

    shape = _shape(model) if is_user_model(model) else None
    if Path(source).is_file():
        draft = draft_from_file(Path(source), model, shape)
    else:
        draft = draft_from_run(catalog.find_run(source, out), model, shape)
    for each in draft.left_out:
        print_note(f"left out: {each}")
    return draft


def _shape(model: str) -> Mapping[str, Any] | None:
    """Shape that a forward pass of the user's own *model* accepted; None: not tried.

    Raises:
        UsageError: it can't be imported or constructed.
    """
    from distbench.cli.user_models import construct_models
    from distbench.core.case import PluginChoice

    for found in construct_models([PluginChoice("user", {"model": model})]).models:
        if found.problem:
            raise UsageError(f"--model: {found.problem}")
        if not found.shape:
            print_note(f"{model}: {UNKNOWN_SHAPE_ADVICE}")
        return found.shape
    return None


def _ask_missing(given: dict[str, str]) -> dict[str, str]:
    """Ask for answers missing from *given* on a terminal; otherwise use and print the defaults."""
    missing = [key for key, value in given.items() if not value]
    if sys.stdin.isatty():
        return {key: _prompt(key) for key in missing}
    for key in missing:
        print_note(f"{key}: {_DEFAULTS[key]} (no terminal to ask on; --{key} sets it)")
    return {key: _DEFAULTS[key] for key in missing}


def _prompt(key: str) -> str:
    """Ask the question for *key* until the answer is valid."""
    while True:
        answer: str = typer.prompt(_PROMPTS[key], default=_DEFAULTS[key], err=True)
        try:
            _CHECKS[key](answer)
        except UsageError as error:
            print_note(str(error))
        else:
            return answer


def _to_answers(said: dict[str, str]) -> SuiteAnswers:
    from distbench.system.machine import visible_gpu_count

    for key, check in _CHECKS.items():
        check(said[key])
    (goal,) = (goal for goal in SUITE_GOALS if goal == said["goal"])
    return SuiteAnswers(
        said["model"], _devices(said["devices"]), goal, "cuda" if visible_gpu_count() else "cpu"
    )


def _devices(text: str) -> tuple[int, ...]:
    sizes = parse_option("--devices", "" if text == "auto" else text, parse_counts) or []
    if 0 in sizes:
        raise UsageError(f"--devices = {text!r}: expected numbers from 1 on, such as 1,2,4, or auto")
    return tuple(sorted(set(sizes)))


def _check_model(model: str) -> None:
    if problem := model_problem(model):
        raise UsageError(f"--model = {model!r}: {problem}")


def _check_goal(goal: str) -> None:
    if goal not in SUITE_GOALS:
        raise UsageError(f"--goal = {goal!r}: {did_you_mean(goal, SUITE_GOALS)}")


_CHECKS: dict[str, Callable[[str], object]] = {
    "model": _check_model,
    "devices": _devices,
    "goal": _check_goal,
}
