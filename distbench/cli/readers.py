"""Commands that read runs, which may be anybody's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec

from distbench.cli.output import notes_before_output
from distbench.record.record_reader import retry_eagerly
from distbench.record.untrusted_records import untrusted_records

P = ParamSpec("P")


def reads_runs(command: Callable[P, int]) -> Callable[P, int]:
    """Mark a *command* that reads runs: no record ends it in a traceback, and a damaged file loses one trial.

    The command launches and writes nothing before it has read all: it may be called twice (``rereading``).
    """

    @functools.wraps(command)
    def reading(*given: P.args, **named: P.kwargs) -> int:
        def attempt() -> int:
            with notes_before_output():
                return command(*given, **named)

        with untrusted_records("the records"):
            return retry_eagerly(attempt)

    return reading
