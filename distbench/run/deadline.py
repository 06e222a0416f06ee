"""Stop before the allocation's time limit ends a trial."""

from __future__ import annotations

import time

from distbench.core import registry
from distbench.core.units import format_duration
from distbench.run.control import Observer, StopRequest

_REPORT_RESERVE_S = 15.0
"""Seconds reserved for stopping the agents and for the report."""


class AllocationTimeLimit:
    """The end of the allocation around this process; queried again before it stops a run."""

    def __init__(self) -> None:
        self._end_at = _query_end()

    def should_stop(self, stop: StopRequest, observer: Observer, seconds: float | None) -> bool:
        """True if a trial of *seconds* (None: unknown) must not start, due to *stop* or lack of time.

        The first reason is passed to *observer*, and sets *stop*.
        """
        if not stop.is_set and (why := self.refusal(seconds)):
            observer.note(why)
            stop.no_new_trials = True
        return stop.is_set

    def refusal(self, seconds: float | None) -> str:
        """Reason not to start a trial of *seconds* (None: unknown); empty if there is none."""
        if self._fits(seconds):
            return ""
        # the limit may have been raised
        self._end_at = _query_end()
        if self._fits(seconds):
            return ""
        left = format_duration(max(0.0, self._end_at - time.monotonic()))
        took = f", and the next trial takes about {format_duration(seconds)}" if seconds is not None else ""
        return f"stopping: {left} are left of the time limit around this run{took}"

    def _fits(self, seconds: float | None) -> bool:
        return time.monotonic() + (seconds or 0.0) + _REPORT_RESERVE_S <= self._end_at


def _query_end() -> float:
    """``time.monotonic()`` of the end of the allocation; infinite if there is none."""
    known = [launcher.seconds_left() for launcher in registry.built_in_plugins("launchers").values()]
    return time.monotonic() + min((each for each in known if each is not None), default=float("inf"))
