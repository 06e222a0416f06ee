"""Mark the time in which the host waits for pipeline messages.

gloo shows a message from its posting until a rank has waited for it, which torch's schedules do for sends
only when a rank has nothing else to do: without a mark, all of that time would seem to be communication.
"""

from __future__ import annotations

import weakref
from contextlib import nullcontext
from typing import Any

from torch.distributed.pipelining import schedules

from distbench.strategies.engine import Engine

# all schedules wait through this function, and torch (2.13) has no public hook to observe it
_TORCH_WAIT = schedules._wait_batch_p2p


def time_message_waits(engine: Engine) -> None:
    """Make all schedules of this process wait in the span ``wait`` of *engine*."""
    # a device may hold only one engine: the next one is built when this one is freed
    live = weakref.ref(engine)

    def waited(work: list[Any]) -> None:
        if work:
            there = live()
            with there.span("wait") if there else nullcontext():
                _TORCH_WAIT(work)

    schedules._wait_batch_p2p = waited
