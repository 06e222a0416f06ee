"""Monotonic clock of a run, in seconds since 1970, unaffected by changes of the machine's clock.

It starts at the wall clock of the run's beginning, and advances with the time since boot, sleep included.
A command and its processes on the same host share one origin. On another host the agent follows the clock
of the command, late by the latency of a message, and its processes share the agent's origin.
"""

import os
import time

CLOCK_VARIABLE = "DISTBENCH_CLOCK"
"""Environment variable with the wall clock of this host at its boot, by this run's clock."""


def now() -> float:
    """Seconds since 1970, by the clock of the run."""
    return _boot_time + time.clock_gettime(time.CLOCK_BOOTTIME)


def clock_environment() -> dict[str, str]:
    """Environment variables that give a process on this host the same clock."""
    return {CLOCK_VARIABLE: repr(_boot_time)}


def synchronize(there: float) -> None:
    """Follow the clock of another host, which shows *there* (seconds since 1970) now."""
    global _boot_time
    _boot_time = there - time.clock_gettime(time.CLOCK_BOOTTIME)


_boot_time = float(os.environ.get(CLOCK_VARIABLE) or time.time() - time.clock_gettime(time.CLOCK_BOOTTIME))
