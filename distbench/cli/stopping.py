"""What is said where something was stopped before its end: how to resume it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from distbench.cli.output import note
from distbench.errors import DistbenchError


@contextmanager
def resumable(command: str) -> Iterator[None]:
    """Print how to resume, with *command*, if the body is ended by what does not say so itself.

    Args:
        command: Ready to be pasted into a shell; empty: it can't be resumed.
    """
    try:
        yield
    except DistbenchError:
        raise
    except BaseException:
        note(stopped(command))
        raise


def stopped(command: str) -> str:
    """What is said of something that was stopped and is resumed with *command*."""
    return f"stopped; resume with: {command}" if command else "stopped; start it again with the same command"
