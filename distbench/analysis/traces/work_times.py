"""Time of a rank's computation by operator, module or kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from distbench.analysis.traces.work import Work
from distbench.core.grouping import group_pairs


@dataclass(frozen=True)
class WorkTime:
    """Computation of one name in the steps of a rank."""

    name: str
    calls: int
    seconds: float
    """Of all calls, where each counts in full even if several run at once."""


def work_times(computation: Iterable[Work], name_of: Callable[[Work], str]) -> list[WorkTime]:
    """Time of *computation* by a name that *name_of* gives; an empty name is left out."""
    found = group_pairs(
        (name, work.event.end - work.event.begin) for work in computation if (name := name_of(work))
    )
    return [WorkTime(name, len(seconds), math.fsum(seconds)) for name, seconds in found.items()]
