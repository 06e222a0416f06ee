"""Skip trials that can only end as others did."""

from __future__ import annotations

from distbench.plan import PlannedTrial
from distbench.record import NOT_LAUNCHED_TEXT, Record, Status
from distbench.run.user_errors import UserErrors

_START = "start"
"""Phase of a rank until all have met."""
_MAX_START_FAILURES = 2
"""Number of failures in a row after which chance, such as a port that another process took, is no cause."""


class StartFailures:
    """Decides which trials can only end before their ranks meet, as others did.

    Until then the strategy plays no part, and the nodes of few ranks are among those of more.
    """

    def __init__(self) -> None:
        self._failed: list[Record] = []
        """Trials since the last one whose ranks met on as many devices."""

    def add(self, record: Record) -> None:
        """Add the outcome of a trial."""
        if _failed_at_start(record):
            self._failed.append(record)
        elif _met(record):
            met = record.case.world_size
            self._failed = [each for each in self._failed if each.case.world_size > met]

    def skip_reason(self, task: PlannedTrial) -> str:
        """Reason not to launch *task*; empty: its ranks may meet."""
        same = [each for each in self._failed if each.case.world_size <= task.case.world_size]
        if len(same) < _MAX_START_FAILURES:
            return ""
        names = " and ".join([*dict.fromkeys(record.case.name for record in same)][:2])
        sizes = " and ".join(str(size) for size in sorted({record.case.world_size for record in same}))
        return (
            f"{NOT_LAUNCHED_TEXT}: {names} ended before their ranks met on {sizes} devices, and this case "
            "would, too; distbench doctor looks for the cause"
        )


class RepeatedFailures:
    """Decides which trials of a session can only end as others did, and are not launched."""

    def __init__(self) -> None:
        self._causes = (UserErrors(), StartFailures())

    def add(self, record: Record) -> None:
        """Add the outcome of a trial."""
        for cause in self._causes:
            cause.add(record)

    def skip_reason(self, task: PlannedTrial) -> str:
        """Reason not to launch *task*; empty: it may succeed."""
        return next(filter(None, (cause.skip_reason(task) for cause in self._causes)), "")


def _met(record: Record) -> bool:
    """True if its ranks met, as far as is known."""
    failure = record.failure
    return record.status is Status.MEASURED or (
        failure is not None and failure.rank is not None and failure.phase != _START
    )


def _failed_at_start(record: Record) -> bool:
    """True if a rank of several failed before all had met."""
    failure = record.failure
    return (
        record.case.world_size > 1
        and record.status in (Status.CRASHED, Status.INIT_TIMEOUT)
        and failure is not None
        and failure.rank is not None
        and failure.phase == _START
    )
