"""What becomes of a trial in which distbench itself raises, or a plug-in on the side of its parent."""

from __future__ import annotations

import traceback

from distbench.core.errors import InfrastructureError
from distbench.ipc.trial_files import FULL
from distbench.record import Failure, Status
from distbench.run.trial_monitor import Ending

_MOST_TEXT = 20_000


def is_full(error: BaseException | None) -> bool:
    """Whether *error* is of a disk that takes no more; such a one ends the run, which is then resumed."""
    return isinstance(error, OSError) and error.errno in FULL


def is_of_the_machine(error: Exception) -> bool:
    """Whether *error* says that nothing can be stored, and not that something of the trial can't."""
    if not isinstance(error, InfrastructureError):
        return False
    cause = error.__cause__
    # without a number it was not the operating system that refused, but a library what it was given
    return not isinstance(cause, OSError) or bool(cause.errno)


def reason_of(error: Exception) -> str:
    """*error* in one sentence."""
    message = (str(error).strip().splitlines() or [""])[0]
    return f"distbench failed: {type(error).__name__}: {message[:_MOST_TEXT]}"


def ending_of(error: Exception) -> Ending:
    """How a trial ended in which *error* was raised outside of its ranks."""
    text = "".join(traceback.format_exception(error))
    return Ending(Status.CRASHED, reason_of(error), Failure(None, "distbench", text[-_MOST_TEXT:]))
