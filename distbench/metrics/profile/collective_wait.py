"""Shortest time of a collective over its ranks, without waiting. Without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class CollectiveTiming:
    """Times of one rank in one collective."""

    posted_ns: int
    """Time at which its backend had it, on the clock of its node."""
    began_ns: int
    """Time from which the rank had nothing else to do; for a message, when it began to wait for it."""
    end_ns: int
    op: str

    @property
    def seconds(self) -> float:
        """Time that the rank spent in it; for the sender of a message, from when it was posted."""
        return (self.end_ns - (self.posted_ns if self.op == "send" else self.began_ns)) / 1e9


def shortest_seconds(timings: Sequence[CollectiveTiming], *, one_clock: bool) -> float:
    """Shortest time in seconds that any of the ranks of *timings* spent in the collective.

    A message that lies ready until the receiver looks seems long to its sender. On *one_clock* its time is at
    most that from when both ends are there and the receiver waits, until it is received.
    """
    least = min(part.seconds for part in timings)
    received = [part for part in timings if part.op == "recv"]
    if len(timings) < 2 or not received or not one_clock:
        return least
    both = max(received[0].began_ns, *(part.posted_ns for part in timings))
    return min(least, max(0.0, (received[0].end_ns - both) / 1e9))
