"""Print how to resume after an interruption."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from distbench.cli.output import print_note
from distbench.core.errors import EXIT_INTERRUPTED, EXIT_TIME_LIMIT, DistbenchError
from distbench.record.run_folder import report_command
from distbench.run import StopReason, raise_on_termination


@contextmanager
def resume_hint_on_abort(command: str) -> Iterator[None]:
    """Print how to resume, with *command*, if the body is aborted without a message of its own.

    Args:
        command: Ready to be pasted into a shell; empty: it can't be resumed.
    """
    with _hint_on_abort(stopped_text(command)):
        yield


@contextmanager
def report_hint_on_abort(folder: Path) -> Iterator[None]:
    """Print how to write the report of the run in *folder* if the body, which writes it, is aborted."""
    with _hint_on_abort(f"stopped after the last trial; write the report with: {report_command(folder)}"):
        yield


@contextmanager
def _hint_on_abort(text: str) -> Iterator[None]:
    """Print *text* if the body is ended by Ctrl-C, SIGTERM, SIGHUP or an unexpected error."""
    with raise_on_termination():
        try:
            yield
        except DistbenchError:
            raise
        except BaseException:
            print_note(text)
            raise


def stopped_text(command: str) -> str:
    """Message that something was stopped and is resumed with *command*."""
    return f"stopped; resume with: {command}" if command else "stopped; start it again with the same command"


def print_stopped(by: StopReason, command: str) -> int:
    """Print that *by* has stopped something, which is resumed with *command*; return the exit code.

    Args:
        command: Ready to be pasted into a shell; empty: it can't be resumed.
    """
    if by != "time":
        print_note(stopped_text(command))
        return EXIT_INTERRUPTED
    again = f"resume with: {command}" if command else "start it again with the same command and more time"
    print_note(f"the time limit around this run is near: stopped after the trial in flight; {again}")
    return EXIT_TIME_LIMIT
