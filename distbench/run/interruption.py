"""Stop requests: signals, and the time limit of the allocation around the run."""

from __future__ import annotations

import os
import signal
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from distbench.core import registry
from distbench.core.units import format_duration
from distbench.run.observer import Observer

StopReason = Literal["", "signal", "time"]
"""Cause of an early stop: a signal, or the time limit of the job; empty: none."""

_REPORT_RESERVE_S = 15.0
"""Seconds reserved for stopping the agents and for the report."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopRequest:
    """Request to stop the run.

    A first Ctrl-C, SIGTERM or SIGHUP requests a stop; a second Ctrl-C or SIGTERM kills. When a terminal
    closes, the kernel and the shell both send SIGHUP, so a second one means nothing more. SIGUSR1, which
    Slurm sends before a time limit (``sbatch --signal``), requests that nothing more is started.
    """

    def __init__(self) -> None:
        self.stop_now = False
        """True to stop the current trial."""
        self.no_new_trials = False
        """True to start no more trials."""

    @property
    def is_set(self) -> bool:
        """True if the run stops early."""
        return bool(self.reason)

    @property
    def reason(self) -> StopReason:
        """Reason for the early stop; empty if there is none."""
        if self.stop_now:
            return "signal"
        return "time" if self.no_new_trials else ""

    @contextmanager
    def handle_signals(self) -> Iterator[StopRequest]:
        """Handle SIGINT, SIGTERM, SIGUSR1 and, unless ``nohup`` ignores it, SIGHUP while the body runs.

        Raises:
            KeyboardInterrupt: the second signal.
        """
        with _signal_handlers(self._on_signal, *_SIGNALS, signal.SIGUSR1):
            yield self

    @contextmanager
    def handle_time_warning(self) -> Iterator[StopRequest]:
        """Handle only SIGUSR1 while the body runs; unhandled, it ends the process."""
        with _signal_handlers(self._on_signal, signal.SIGUSR1):
            yield self

    def _on_signal(self, number: int, frame: Any) -> None:
        if number == signal.SIGUSR1:
            self.no_new_trials = True
            return
        if number == signal.SIGHUP:
            _detach_closed_terminal()
        elif self.stop_now:
            raise KeyboardInterrupt
        self.stop_now = True


@contextmanager
def ignore_time_warning() -> Iterator[None]:
    """Ignore SIGUSR1 while the body runs; outside of trials it would end the process."""
    with _signal_handlers(lambda *_: None, signal.SIGUSR1):
        yield


@contextmanager
def raise_on_termination() -> Iterator[None]:
    """Let SIGTERM and, unless ``nohup`` ignores it, SIGHUP interrupt the body as Ctrl-C does.

    Raises:
        KeyboardInterrupt: one of them arrived.
    """

    def interrupt(number: int, _: Any) -> None:
        if number == signal.SIGHUP:
            # the second one of a closed terminal
            signal.signal(number, signal.SIG_IGN)
            _detach_closed_terminal()
        raise KeyboardInterrupt

    with _signal_handlers(interrupt, *_SIGNALS):
        yield


@contextmanager
def _signal_handlers(handler: Callable[[int, Any], None], *signals: signal.Signals) -> Iterator[None]:
    """Install *handler* for each of *signals* while the body runs."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    handled = [number for number in signals if not (number == signal.SIGHUP and ignored)]
    before = {number: signal.signal(number, handler) for number in handled}
    try:
        yield
    finally:
        for number, earlier in before.items():
            # None: a handler that is not Python's, which can't be restored
            signal.signal(number, signal.SIG_DFL if earlier is None else earlier)


def _detach_closed_terminal() -> None:
    """Redirect standard output and error to nowhere if their terminal has closed.

    Otherwise, printing would raise an error and end the run before its report is written.
    """
    null = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        # a closed terminal is still a device, but no longer answers as a terminal
        if stat.S_ISCHR(os.fstat(descriptor).st_mode) and not os.isatty(descriptor):
            os.dup2(null, descriptor)
    os.close(null)


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
