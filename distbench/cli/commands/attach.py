"""``distbench attach``: follow a submitted run, or one in another terminal."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Annotated

from distbench.cli.options import DEFAULT_RUNS_FOLDER, OutOption, QuietOption, RunArgument, flag
from distbench.cli.output import print_note
from distbench.core.errors import EXIT_INTERRUPTED, InfrastructureError, UsageError

if TYPE_CHECKING:
    from distbench.record.run_folder import Run


def attach(
    name: RunArgument,
    out: OutOption = DEFAULT_RUNS_FOLDER,
    cancel: Annotated[bool, flag("--cancel", text="First cancel its job.")] = False,
    quiet: QuietOption = False,
) -> int:
    """Follow a run that is in progress elsewhere.

    Ctrl-C stops following; the run continues.
    """
    from distbench.cli.follow import detach_text, follow
    from distbench.record import catalog
    from distbench.record.record_reader import untrusted_records
    from distbench.run.interruption import raise_on_termination

    run = catalog.find_run(name, out)
    _check_launcher(run)
    if cancel:
        _cancel(run)
    try:
        with raise_on_termination(), untrusted_records("the records"):
            return follow(run, quiet=quiet)
    except KeyboardInterrupt:
        print_note(detach_text(run.folder))
        return EXIT_INTERRUPTED


def _check_launcher(run: Run) -> None:
    """Check that the job of *run* can be followed without code that its folder names.

    Raises:
        UsageError: it can't.
    """
    from distbench.core import registry
    from distbench.core.text import one_line
    from distbench.record import submission

    handed = submission.read_submitted_job(run.folder)
    if handed and handed.launcher not in registry.built_in_plugins("launchers"):
        raise UsageError(
            f"{run.folder}: submitted to the launcher {one_line(handed.launcher)}, which is a plug-in; "
            "distbench attach runs no plug-in that a run names, so use the commands of its engine"
        )


def _cancel(run: Run) -> None:
    from distbench.cli.queue_submission import launcher_queue
    from distbench.record import submission

    handed = submission.read_submitted_job(run.folder)
    if handed is None:
        raise UsageError(f"{run.folder}: not submitted as a job; stop its command with Ctrl-C")
    command = launcher_queue(handed.launcher).cancel_command(handed.job)
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise InfrastructureError(f"{command[0]}: can't be started: {error.strerror}") from error
    if done.returncode:
        raise InfrastructureError(f"job {handed.job} can't be cancelled: {' '.join(done.stderr.split())}")
