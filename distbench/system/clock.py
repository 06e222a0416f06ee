"""The clock of a run: seconds since 1970 that go on evenly, whatever sets the clock of the machine meanwhile.

It is the wall clock as it was when the run began, and from there on the time since boot, sleep included. A
command and what it starts on its own host count from the same moment. On another host the agent follows the
clock of the command, as late as a message takes, and what it starts counts as it does.
"""

import os
import time

VARIABLE = "DISTBENCH_CLOCK"
"""Environment variable with the wall clock of this host at its boot, as this run has it."""


def now() -> float:
    """Seconds since 1970."""
    return _AT_BOOT + time.clock_gettime(time.CLOCK_BOOTTIME)


def shared() -> dict[str, str]:
    """Variables with which a process of this host counts as this one does."""
    return {VARIABLE: repr(_AT_BOOT)}


def follow(there: float) -> None:
    """Count from here on as another host does, on which it is *there* (seconds since 1970) now."""
    global _AT_BOOT
    _AT_BOOT = there - time.clock_gettime(time.CLOCK_BOOTTIME)


_AT_BOOT = float(os.environ.get(VARIABLE) or time.time() - time.clock_gettime(time.CLOCK_BOOTTIME))
