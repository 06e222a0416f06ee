"""Explain the difference between two traces by operator, collective and cause of idle time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from distbench.analysis.traces.breakdown import Piece
from distbench.core.grouping import group_pairs

CauseSeconds = dict[tuple[str, str], float]
"""Kind and name of a cause -> seconds."""


@dataclass(frozen=True)
class CauseChange:
    """Time of one cause in a step of two traces, in seconds; mean over steps and ranks."""

    kind: str
    """``compute``, ``communication`` (exposed), ``copy`` (exposed) or ``idle``."""
    name: str
    """Operator, collective, direction of a copy, or cause of idle time."""
    before: float
    after: float

    @property
    def change(self) -> float:
        """Seconds that a step takes more, or less if negative."""
        return self.after - self.before


def cause_changes(before: Sequence[CauseSeconds], after: Sequence[CauseSeconds]) -> list[CauseChange]:
    """Changes of all causes, the largest first; they add up to the difference of the mean steps.

    Args:
        before: Seconds of each cause in a mean step, by rank.
        after: Those of the other trace.
    """
    old, new = _mean_seconds(before), _mean_seconds(after)
    changes = [CauseChange(*cause, old.get(cause, 0.0), new.get(cause, 0.0)) for cause in {**old, **new}]
    return sorted(changes, key=lambda each: (-abs(each.change), each.kind, each.name))


def cause_seconds(of_steps: Sequence[Sequence[Piece]]) -> CauseSeconds:
    """Seconds of each cause in a step of a rank, mean over its steps."""
    found = group_pairs((_cause(piece), piece.seconds) for pieces in of_steps for piece in pieces)
    return {cause: math.fsum(parts) / len(of_steps) for cause, parts in found.items()}


def _mean_seconds(of_ranks: Sequence[CauseSeconds]) -> CauseSeconds:
    """Mean over the ranks."""
    found = group_pairs(each for rank in of_ranks for each in rank.items())
    return {cause: math.fsum(parts) / len(of_ranks) for cause, parts in found.items()}


def _cause(piece: Piece) -> tuple[str, str]:
    if piece.idle is not None:
        return piece.kind, piece.idle.cause
    work = piece.work
    return piece.kind, "" if work is None else work.event.name if work.kind == "copy" else work.operator
