"""The clock of a run: seconds since 1970 that go on evenly, whatever sets the clock of the machine meanwhile.

It is the wall clock as it was when the run began, and from there on the time since boot, sleep included. A
command and what it starts on its own host count from the same moment. On another host the agent follows the
clock of the command, as late as a message takes, and what it starts counts as it does.
"""

import os
import time

CLOCK_VARIABLE = "DISTBENCH_CLOCK"
"""Environment variable with the wall clock of this host at its boot, as this run has it."""


def now() -> float:
    """Seconds since 1970."""
    return _boot_time + time.clock_gettime(time.CLOCK_BOOTTIME)


def clock_environment() -> dict[str, str]:
    """Variables with which a process of this host counts as this one does."""
    return {CLOCK_VARIABLE: repr(_boot_time)}


def synchronize(there: float) -> None:
    """Count from here on as another host does, on which it is *there* (seconds since 1970) now."""
    global _boot_time
    _boot_time = there - time.clock_gettime(time.CLOCK_BOOTTIME)


_boot_time = float(os.environ.get(CLOCK_VARIABLE) or time.time() - time.clock_gettime(time.CLOCK_BOOTTIME))
