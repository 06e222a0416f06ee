"""``distbench measure``: measure a training script that runs already, unchanged."""

from __future__ import annotations

from typing import Annotated

import typer

from distbench.cli import options
from distbench.cli.options import argument, flag, option
from distbench.core.errors import UsageError

# the command's own options are not those of distbench, even if -- is forgotten
CONTEXT_SETTINGS = {"allow_interspersed_args": False}


def measure(
    context: typer.Context,
    command: Annotated[
        list[str] | None,
        argument("-- COMMAND", "The command, as it is: -- torchrun --nproc-per-node 2 train.py"),
    ] = None,
    steps: Annotated[int, option("--steps", "N", "Timed steps.", has_default=True)] = 50,
    warmup: Annotated[int, option("--warmup", "N", "Steps before them.", has_default=True)] = 10,
    profile: Annotated[
        int, option("--profile", "N", "Steps under the profiler, after the timed ones.", has_default=True)
    ] = 3,
    trials: Annotated[int, option("--trials", "N", "Launches of the command.", has_default=True)] = 1,
    keep_running: Annotated[
        bool, flag("--keep-running", text="Let the script go on once everything is measured.")
    ] = False,
    tokens_per_step: Annotated[
        int | None,
        option("--tokens-per-step", "N", "Tokens of a step of all ranks, if its inputs don't tell."),
    ] = None,
    out: options.OutOption = options.DEFAULT_RUNS_FOLDER,
    as_json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> int:
    """Measure a training script, unchanged."""
    from distbench.cli.script_session import measure_command

    for name, number, least in (
        ("--steps", steps, 1),
        ("--warmup", warmup, 1),
        ("--profile", profile, 0),
        ("--trials", trials, 1),
        ("--tokens-per-step", tokens_per_step or 1, 1),
    ):
        if number < least:
            raise UsageError(f"{name} = {number}: must be at least {least}")
    return measure_command(
        context.obj,
        tuple(command or ()),
        out,
        steps=steps,
        warmup=warmup,
        profile_steps=profile,
        trials=trials,
        keep_running=keep_running,
        tokens_per_step=tokens_per_step,
        as_json=as_json,
        quiet=quiet,
    )
