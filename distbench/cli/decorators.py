"""Decorators of commands: reading of untrusted runs, and time warnings of an engine."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec

from distbench.cli.output import notes_before_output

P = ParamSpec("P")


def reads_runs(command: Callable[P, int]) -> Callable[P, int]:
    """Decorate a *command* that reads runs: inconsistent records end it without a traceback.

    A damaged file costs one trial. The command launches and writes nothing before it has read everything,
    since it may be called twice (``retry_eagerly``).
    """

    @functools.wraps(command)
    def reading(*given: P.args, **named: P.kwargs) -> int:
        from distbench.record.record_reader import retry_eagerly, untrusted_records
        from distbench.system.garbage_collection import paused_collection

        def attempt() -> int:
            with notes_before_output():
                return command(*given, **named)

        with untrusted_records("the records"), paused_collection():
            return retry_eagerly(attempt)

    return reading


def ignores_time_warnings(command: Callable[P, int]) -> Callable[P, int]:
    """Decorate a *command* that launches trials: a time warning that arrives outside of them is ignored."""

    @functools.wraps(command)
    def ignoring(*given: P.args, **named: P.kwargs) -> int:
        from distbench.run import ignore_time_warning

        with ignore_time_warning():
            return command(*given, **named)

    return ignoring
