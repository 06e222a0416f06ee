"""The time limit of the engine around a command: no trial is begun that would not end before it."""

from __future__ import annotations

import time

from distbench.core import registry
from distbench.core.units import duration_text
from distbench.run.control import Observer, StopRequest

_RESERVE_S = 15.0
"""Seconds that are left for the end of the agents and for the report."""


class Deadline:
    """When the engine around this process ends it; asked when made, and again before it is believed."""

    def __init__(self) -> None:
        self._at = _end()

    def ends(self, stop: StopRequest, observer: Observer, seconds: float | None) -> bool:
        """Whether a trial of *seconds* (None: unknown) is not to be begun, for *stop* or for want of time.

        What says so first is told to *observer*, and *stop* knows of it from then on.
        """
        if not stop.ends and (why := self.problem(seconds)):
            observer.note(why)
            stop.time_is_up = True
        return stop.ends

    def problem(self, seconds: float | None) -> str:
        """Why a trial of *seconds* (None: unknown) is not to be begun; empty: it may be."""
        if self._fits(seconds):
            return ""
        # a limit may have been raised
        self._at = _end()
        if self._fits(seconds):
            return ""
        left = duration_text(max(0.0, self._at - time.monotonic()))
        took = f"; the next trial took {duration_text(seconds)} before" if seconds is not None else ""
        return f"{left} are left of the time limit around this run{took}: no more trials are begun"

    def _fits(self, seconds: float | None) -> bool:
        return time.monotonic() + (seconds or 0.0) + _RESERVE_S <= self._at


def _end() -> float:
    """``time.monotonic()`` of the end; infinite if there is none."""
    known = [launcher.ends_in() for launcher in registry.built_in("launchers").values()]
    return time.monotonic() + min((each for each in known if each is not None), default=float("inf"))
