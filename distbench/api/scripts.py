"""Measure a training script from Python, as ``distbench measure`` does."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from distbench.api.run import RunResults
from distbench.core.errors import UsageError
from distbench.run.scripts.measurement import ScriptPlan, measure_script
from distbench.run.scripts.script_process import check_command


def measure(
    command: str | Sequence[str],
    *,
    warmup: int = 10,
    steps: int = 50,
    profile_steps: int = 3,
    trials: int = 1,
    keep_running: bool = False,
    tokens_per_step: int | None = None,
    out: str | Path = "reports",
    quiet: bool = False,
) -> RunResults:
    """Measure the training script that *command* starts, unchanged; return the run.

    Args:
        command: Words of the command, or one line without a shell's syntax, such as
            ``torchrun --nproc-per-node 2 train.py``.
        warmup: Steps before the timed ones.
        steps: Timed steps.
        profile_steps: Steps under torch's profiler, after those.
        trials: Launches of the command.
        keep_running: Let the script go on once everything is measured; by default it ends there.
        tokens_per_step: Tokens of a step of all ranks, if its inputs don't tell.
        out: Folder that holds the runs.
        quiet: Show no progress.

    Raises:
        UsageError: the command can't be started, or no step of it could be timed; no run is left then.
        InfrastructureError: the disk is full or the folder is not writable.
    """
    words = tuple(shlex.split(command) if isinstance(command, str) else command)
    check_command(words, "measure")
    for name, number, least in (("warmup", warmup, 1), ("steps", steps, 1), ("trials", trials, 1)):
        if number < least:
            raise UsageError(f"{name} = {number}: must be at least {least}")
    plan = ScriptPlan(words, warmup, steps, profile_steps, trials, keep_running, tokens_per_step)
    command_line = ["distbench", "measure", "--", *words]
    outcome = measure_script(plan, Path(out), command_line, _say_nothing if quiet else _say)
    return RunResults(outcome.run)


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def _say_nothing(line: str) -> None:
    pass
