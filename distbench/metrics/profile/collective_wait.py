"""How long a collective itself takes, apart from waiting for the ranks that come late. Without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class CollectiveTiming:
    """What a rank tells the others of its part in a collective."""

    posted_ns: int
    """When its backend had it, on the clock of its node."""
    began_ns: int
    """When it had nothing else to do: of a message, that it waited for it."""
    end_ns: int
    op: str

    @property
    def seconds(self) -> float:
        """Time that the rank spent in it; of a message its sender's from when it was posted."""
        return (self.end_ns - (self.posted_ns if self.op == "send" else self.began_ns)) / 1e9


def shortest_seconds(timings: Sequence[CollectiveTiming], *, one_clock: bool) -> float:
    """Shortest time in seconds that any of the ranks spent in it, of which *timings* tell.

    A message that lies ready until somebody looks seems long to its sender: on *one_clock* it takes no longer
    than from when both ends are there and the receiver waits, until it is received.
    """
    least = min(part.seconds for part in timings)
    received = [part for part in timings if part.op == "recv"]
    if len(timings) < 2 or not received or not one_clock:
        return least
    both = max(received[0].began_ns, *(part.posted_ns for part in timings))
    return min(least, max(0.0, (received[0].end_ns - both) / 1e9))
