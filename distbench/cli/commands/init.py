"""``distbench init``: a first suite."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from distbench.cli.options import (
    DEFAULT_RUNS_FOLDER,
    DatasetOption,
    ModelOption,
    OutOption,
    SourceOption,
    argument,
    option,
)
from distbench.cli.output import print_note, print_text
from distbench.cli.suite_template import SUITE_GOALS
from distbench.core.errors import UsageError

_PROMPTS = {
    "model": "Model: a preset of the transformer (tiny, gpt2-small, 1b, ...) or package.module:callable",
    "devices": "Numbers of devices, such as 1,2,4; auto: all of them",
    "goal": f"Goal: {', '.join(SUITE_GOALS)}",
}
_DEFAULTS = {"model": "tiny", "devices": "auto", "goal": "throughput"}


def init(
    file: Annotated[Path, argument("[FILE]", "Suite to write (default: suite.yaml).")] = Path("suite.yaml"),
    model: ModelOption = "",
    data: DatasetOption = "",
    devices: Annotated[str, option("--devices", "N,N", "Numbers of devices: 1,2,4, or auto.")] = "",
    goal: Annotated[str, option("--goal", "GOAL", "throughput, memory, scaling or gate.")] = "",
    on: Annotated[
        str,
        option(
            "--on",
            "GPUS",
            "Propose strategies for GPUs that are not here: h100-sxm:8x8 (8 nodes of 8) or machine.yaml.",
        ),
    ] = "",
    source: SourceOption = "",
    out: OutOption = DEFAULT_RUNS_FOLDER,
) -> int:
    """Write a first suite, with comments."""
    from distbench.cli.suite_origin import SuiteOrigin, check_folder, described_gpus, write_suite

    if source and (devices or goal):
        raise UsageError(
            f"{'--devices' if devices else '--goal'}: leave it out beside --from, which decides it"
        )
    if source and on:
        raise UsageError(
            "--on: leave it out beside --from, whose strategies are that of the training and its alternatives"
        )
    if file.exists():
        raise UsageError(f"{file}: already exists; choose another file: distbench init FILE")
    check_folder(file)
    if on:
        # before anything is asked
        described_gpus(on)
    answers = {"model": model, "devices": devices, "goal": goal}
    if not source:
        answers = _ask_missing(answers, _DEFAULTS | ({"model": "auto"} if on else {}))
    given = {key: value for key, value in answers.items() if value}
    write_suite(file, SuiteOrigin(source, data=data, on=on, **given).suite_text(file, out))
    there = f" --predict --on {shlex.quote(on)}" if on else ""
    print_text(f"{file}: written. See what it would run with: distbench plan {shlex.quote(str(file))}{there}")
    return 0


def _ask_missing(given: dict[str, str], defaults: dict[str, str]) -> dict[str, str]:
    """Answers *given*; for missing ones ask on a terminal, elsewhere use and print the *defaults*."""
    missing = [key for key, value in given.items() if not value]
    if sys.stdin.isatty():
        return given | {key: _prompt(key, defaults[key]) for key in missing}
    for key in missing:
        print_note(f"{key}: {defaults[key]} (no terminal to ask on; --{key} sets it)")
    return given | {key: defaults[key] for key in missing}


def _prompt(key: str, default: str) -> str:
    """Ask the question for *key* until the answer is valid."""
    while True:
        answer: str = typer.prompt(_PROMPTS[key], default=default, err=True)
        try:
            _check(key, answer)
        except UsageError as error:
            print_note(str(error))
        else:
            return answer


def _check(key: str, answer: str) -> None:
    """Raise UsageError if *answer* is none to the question for *key*."""
    from distbench.cli import suite_origin

    checks = {
        "model": suite_origin.check_model,
        "devices": suite_origin.parse_devices,
        "goal": suite_origin.check_goal,
    }
    checks[key](answer)
