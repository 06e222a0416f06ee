"""How long a collective itself takes, apart from waiting for the ranks that come late. Without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """What a rank tells the others of its part in a collective."""

    began_ns: int
    """On the clock of its node."""
    seconds: float
    op: str

    @property
    def end_ns(self) -> int:
        """On the clock of its node."""
        return self.began_ns + round(self.seconds * 1e9)


def shortest(parts: Sequence[Part], *, one_clock: bool) -> float:
    """Shortest time in seconds that any of the ranks spent in it, of which *parts* tell.

    A message that lies ready until somebody looks seems long to its sender: on *one_clock* it takes no longer
    than from when both ends are there until it is received.
    """
    least = min(part.seconds for part in parts)
    received = [part.end_ns for part in parts if part.op == "recv"]
    if len(parts) < 2 or not received or not one_clock:
        return least
    both = max(part.began_ns for part in parts)
    return min(least, max(0.0, (received[0] - both) / 1e9))
