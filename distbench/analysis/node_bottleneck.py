"""Whether the link between nodes is what holds a training back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from distbench.analysis.case_summary import CaseSummary
from distbench.analysis.communication import bandwidths
from distbench.core.units import bits_text, bytes_text

LINK = 0.2
"""Share of a profiled step in exposed transfer between nodes from which on the link holds a training back:
without it a step would be at least 1.25 times as fast."""
LARGE = 2**20
"""Bytes of a message from which on its bandwidth is taken for that of the link: smaller ones wait for its
latency, or fit into buffers on the way."""
FULL = 0.5
"""Part of the highest bus bandwidth of a large message between nodes below which a training's messages are
too small for the link: then it is latency that holds it back."""


@dataclass(frozen=True)
class HeldBack:
    """A training that waits for transfers between nodes more than for anything else."""

    share: float
    """Part of a profiled step in which a transfer between nodes runs and no computation hides it."""
    busbw: float
    """That its collectives between nodes reach, in bytes per second (nccl-tests)."""
    best: float
    """The highest that a large message between nodes reached in the run; 0: there was none."""

    @property
    def by(self) -> str:
        """What holds it back."""
        if not self.best:
            return "communication between nodes"
        return "the link between nodes" if self.busbw >= FULL * self.best else "latency between nodes"

    @property
    def sentence(self) -> str:
        """Why, after the name of the case and "is"."""
        other = ""
        if not self.best:
            other = f"; no message of {bytes_text(LARGE)} or more tells what the link carries"
        elif self.busbw < FULL * self.best:
            other = f", where large messages reach {bits_text(8 * self.best)}"
        return (
            f"held back by {self.by}: {self.share:.0%} of a profiled step is transfer between nodes that no "
            f"computation hides, at {bits_text(8 * self.busbw)} bus bandwidth{other}"
        )


def held_back(rows: Sequence[CaseSummary]) -> dict[str, HeldBack]:
    """Those of *rows* that what is between nodes holds back, by the ids of their cases.

    It does if exposed transfer between nodes takes at least ``LINK`` of a profiled step, and more of it than
    exposed transfer inside nodes and than exposed waiting for slower ranks.
    """
    shares = {row.case.id: (row, share) for row in rows if row.comparable and (share := _share(row))}
    best = _best(rows) if shares else 0.0
    return {
        case_id: HeldBack(share, _value(row, "comm_between_busbw"), best)
        for case_id, (row, share) in shares.items()
    }


def _share(row: CaseSummary) -> float:
    """Share of a profiled step in exposed transfer between nodes; 0: unknown, or other waits are longer."""
    step, between = _value(row, "profile_step_s"), _value(row, "comm_between_exposed_s")
    inside = _value(row, "comm_inside_exposed_s")
    waiting = _value(row, "comm_exposed_s") - between - inside
    if not step or not _value(row, "comm_between_busbw") or between < max(inside, waiting, LINK * step):
        return 0.0
    return between / step


def _best(rows: Sequence[CaseSummary]) -> float:
    """The highest bus bandwidth of a large message between nodes; 0: there is none."""
    details = [row.detail for row in rows if row.detail and "comm_between_busbw" in row.values]
    reached = [each for detail in details for each in bandwidths(detail) if each.nodes > 1]
    return max((each.busbw for each in reached if each.bytes >= LARGE), default=0.0)


def _value(row: CaseSummary, column: str) -> float:
    estimate = row.values.get(column)
    return estimate.value if estimate else 0.0
