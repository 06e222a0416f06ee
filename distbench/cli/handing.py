"""Handing a run to an engine: what is handed over, and how."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

from distbench import registry
from distbench.errors import InfrastructureError, UsageError
from distbench.launchers.base import Controller, Launcher, Submission
from distbench.suite import Suite

LOGS = "submitted"
"""Folder of a run for what its jobs print."""


def override_arguments(
    set_: Sequence[str], only: Sequence[str], world_sizes: str, device: str, *, check: bool
) -> list[str]:
    """Options of ``distbench run`` that override a suite so."""
    named = {"--world-sizes": [world_sizes], "--device": [device], "--set": set_, "--only": only}
    given = [word for name, values in named.items() for value in values if value for word in (name, value)]
    return [*given, *(["--check"] if check else [])]


def resume_arguments(folder: Path) -> list[str]:
    """Arguments of ``distbench`` that begin the run in *folder*, or resume it."""
    return ["run", "--resume", str(folder), "--quiet"]


def submission_of(
    suite: Suite,
    arguments: Sequence[str],
    nodes: int | None,
    overrides: Sequence[str],
    logs: Path | None = None,
) -> Submission:
    """What is handed to the launcher of *suite* for ``distbench`` with *arguments* to run it on *nodes*.

    Args:
        overrides: Options with which the file of the suite is this one.

    Raises:
        UsageError: it takes no runs, or not this one.
    """
    name = suite.launcher.name
    launcher: Launcher = registry.make("launchers", suite.launcher)
    nodes = launcher.asks_for() if nodes is None else nodes
    if nodes is None or nodes < 1:
        given = "is missing" if nodes is None else f"= {nodes}: must be at least 1"
        raise UsageError(f"--on {name}: --nodes {given}; it is the number of nodes to ask for")
    file = Path(suite.file).name
    controller = Controller(
        arguments, nodes, suite.name, logs=logs, file=file, text=suite.text, overrides=overrides
    )
    submission = launcher.submission(controller)
    if submission is None:
        raise UsageError(
            f"--on {name}: this launcher takes no runs; start distbench where it can launch them"
        )
    return submission


def hand_over(submission: Submission) -> str:
    """Hand *submission* to its engine; return what that prints.

    Raises:
        InfrastructureError: the engine refuses, or its command is not installed.
    """
    program = submission.command[0]
    try:
        done = subprocess.run(
            submission.command, input=submission.text, capture_output=True, text=True, check=False
        )
    except OSError as error:
        advice = "use a login node of the cluster, or --print to take it there"
        raise InfrastructureError(f"{program}: can't be started: {error.strerror}", advice) from error
    if done.returncode:
        said = " ".join(done.stderr.split()) or f"exited with code {done.returncode}"
        raise InfrastructureError(f"{program} refused: {said}")
    return done.stdout


def shell_text(submission: Submission) -> str:
    """*submission* as a command to be pasted into a shell."""
    return f"{shlex.join(submission.command)} <<'END'\n{submission.text.rstrip()}\nEND"
