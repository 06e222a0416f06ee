"""Marks in which the host waits for messages of a pipeline.

gloo shows a message from when it is posted until somebody has waited for it, which torch's schedules do for
sends only when a rank has nothing else to do: without a mark all of that time would seem to be communication.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from torch.distributed.pipelining import schedules

# all schedules wait by this function, and torch (2.13) has no public place to look at it
_WAIT = schedules._wait_batch_p2p


def mark(span: Callable[[str], AbstractContextManager[Any]]) -> None:
    """Let all schedules of this process wait in a *span* ``wait``."""

    def waited(work: list[Any]) -> None:
        if work:
            with span("wait"):
                _WAIT(work)

    schedules._wait_batch_p2p = waited
