"""Map errors of distbench, or of a plug-in in its parent process, to trial outcomes."""

from __future__ import annotations

import traceback

from distbench.core.errors import InfrastructureError
from distbench.ipc.trial_files import DISK_FULL_ERRNOS
from distbench.record import Failure, Status
from distbench.run.trial_monitor import TrialOutcome

_MAX_TEXT = 20_000


def is_disk_full(error: BaseException | None) -> bool:
    """True for errors of a full disk; they end the run, which can be resumed."""
    return isinstance(error, OSError) and error.errno in DISK_FULL_ERRNOS


def is_storage_error(error: Exception) -> bool:
    """True if *error* means that nothing at all can be stored, rather than something of this trial."""
    if not isinstance(error, InfrastructureError):
        return False
    cause = error.__cause__
    # without a number the error is not the operating system's, but a library's about its input
    return not isinstance(cause, OSError) or bool(cause.errno)


def internal_error_reason(error: Exception) -> str:
    """Describe *error* in one sentence."""
    message = (str(error).strip().splitlines() or [""])[0]
    return f"internal error in distbench or a plug-in: {type(error).__name__}: {message[:_MAX_TEXT]}"


def internal_error_outcome(error: Exception) -> TrialOutcome:
    """Outcome of a trial in which *error* was raised outside of its ranks."""
    text = "".join(traceback.format_exception(error))
    return TrialOutcome(
        Status.CRASHED, internal_error_reason(error), Failure(None, "distbench", text[-_MAX_TEXT:])
    )
