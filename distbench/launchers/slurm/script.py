"""Write the batch script of a controller (https://slurm.schedmd.com/sbatch.html)."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from distbench.core.errors import UsageError
from distbench.launchers.base import ControllerCommand
from distbench.system.files import slug

if TYPE_CHECKING:
    from distbench.launchers.slurm import Slurm

SBATCH_COMMAND = ("sbatch", "--parsable")
"""Reads a script and prints the number of the job."""

# options in Slurm's words -> the environment variable that sbatch prefers to the value in a script
_OPTION_VARIABLES = {
    "partition": "SBATCH_PARTITION",
    "account": "SBATCH_ACCOUNT",
    "qos": "SBATCH_QOS",
    "gres": "SBATCH_GRES",
    "time": "SBATCH_TIMELIMIT",
    "constraint": "SBATCH_CONSTRAINT",
}


def batch_script(slurm: Slurm, controller: ControllerCommand) -> str:
    """Batch script that becomes *controller*.

    Raises:
        UsageError: the environment contradicts the suite, and sbatch would follow it; or an
            option can't be written into a script.
    """
    options = [f"#SBATCH {_quoted(option)}" for option in (*_options(slurm, controller), *slurm.sbatch)]
    command = [controller.target.python, "-P", "-m", "distbench", *controller.arguments]
    # the signal goes to the process that the script has become
    return "\n".join(["#!/bin/bash", *options, *slurm.setup, f"exec {shlex.join(command)}", ""])


def _options(slurm: Slurm, controller: ControllerCommand) -> Iterator[str]:
    yield f"--job-name=distbench-{slug(controller.name)}"
    yield f"--nodes={controller.nodes}"
    yield "--ntasks-per-node=1"
    for option, variable in _OPTION_VARIABLES.items():
        if wanted := str(getattr(slurm, option)):
            preferred = os.environ.get(variable, wanted)
            if preferred != wanted:
                raise UsageError(
                    f"launcher.slurm.{option} = {wanted!r}: sbatch would use {preferred!r} from the "
                    f"environment variable {variable}; unset the variable, or omit the option"
                )
            yield f"--{option}={wanted}"
    if slurm.exclusive:
        yield "--exclusive"
    yield "--requeue" if slurm.requeue else "--no-requeue"
    # without B: it would go to the agents, and end them
    yield f"--signal=B:USR1@{slurm.warning}"
    yield f"--chdir={controller.target.working_directory or Path.cwd()}"
    if controller.log_folder:
        # % begins a pattern; the output of a requeued job stays
        place = str(controller.log_folder).replace("%", "%%")
        yield from (f"--output={place}/%j.out", f"--error={place}/%j.err", "--open-mode=append")


def _quoted(option: str) -> str:
    """Quote *option* for sbatch in a script.

    Raises:
        UsageError: it does not fit onto a line.
    """
    if not option.isprintable():
        raise UsageError(f"{option!r}: sbatch does not allow line breaks or control characters in an option")
    if not set(option) & set(" \t\"'\\#"):
        return option
    escaped = option.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
