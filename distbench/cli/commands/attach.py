"""``distbench attach``: follow a run that was handed to an engine, or that runs in another terminal."""

from __future__ import annotations

import subprocess
from typing import Annotated

from distbench.cli.follow import follow, going_on
from distbench.cli.options import REPORTS, Out, Quiet, RunName, flag
from distbench.cli.output import note
from distbench.cli.queue_submission import queue_of
from distbench.core.errors import INTERRUPTED, InfrastructureError, UsageError
from distbench.record import catalog, submission
from distbench.record.run_folder import Run
from distbench.record.untrusted import untrusted_records
from distbench.run.control import interruptible


def attach(
    name: RunName,
    out: Out = REPORTS,
    cancel: Annotated[bool, flag("--cancel", text="First cancel its job.")] = False,
    quiet: Quiet = False,
) -> int:
    """Follow a run that goes on elsewhere.

    Ctrl-C leaves it going on.
    """
    run = catalog.find(name, out)
    if cancel:
        _cancel(run)
    try:
        with interruptible(), untrusted_records("the records"):
            return follow(run, quiet=quiet)
    except KeyboardInterrupt:
        note(going_on(run.folder))
        return INTERRUPTED


def _cancel(run: Run) -> None:
    handed = submission.read_job(run.folder)
    if handed is None:
        raise UsageError(f"{run.folder}: no job does it; stop the command that does with Ctrl-C")
    command = queue_of(handed.launcher).cancel_command(handed.job)
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise InfrastructureError(f"{command[0]}: can't be started: {error.strerror}") from error
    if done.returncode:
        raise InfrastructureError(f"{command[0]} refused: {' '.join(done.stderr.split())}")
