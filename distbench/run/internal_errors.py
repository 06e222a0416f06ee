"""What becomes of a trial in which distbench itself raises, or a plug-in on the side of its parent."""

from __future__ import annotations

import traceback

from distbench.core.errors import InfrastructureError
from distbench.ipc.trial_files import DISK_FULL_ERRNOS
from distbench.record import Failure, Status
from distbench.run.trial_monitor import TrialOutcome

_MAX_TEXT = 20_000


def is_disk_full(error: BaseException | None) -> bool:
    """Whether *error* is of a disk that takes no more; such a one ends the run, which is then resumed."""
    return isinstance(error, OSError) and error.errno in DISK_FULL_ERRNOS


def is_storage_error(error: Exception) -> bool:
    """Whether *error* says that nothing can be stored, and not that something of the trial can't."""
    if not isinstance(error, InfrastructureError):
        return False
    cause = error.__cause__
    # without a number it was not the operating system that refused, but a library what it was given
    return not isinstance(cause, OSError) or bool(cause.errno)


def internal_error_reason(error: Exception) -> str:
    """*error* in one sentence."""
    message = (str(error).strip().splitlines() or [""])[0]
    return f"distbench failed: {type(error).__name__}: {message[:_MAX_TEXT]}"


def internal_error_outcome(error: Exception) -> TrialOutcome:
    """How a trial ended in which *error* was raised outside of its ranks."""
    text = "".join(traceback.format_exception(error))
    return TrialOutcome(
        Status.CRASHED, internal_error_reason(error), Failure(None, "distbench", text[-_MAX_TEXT:])
    )
