"""Clock that all ranks share, and rows of what it measured."""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from distbench.ipc.trial_files import PhaseTimer
from distbench.worker.collective_times import call_seconds

MIN_REPETITIONS, MAX_REPETITIONS = 3, 30
_BUDGET_SHARE = {"computation": 0.4, "collective_in_step": 0.85, "collective": 1.0}
"""Share of the seconds that is over when a kind of rates ends."""


class SharedClock:
    """Clock that all ranks share: every method is a collective call, with the same result on all of them."""

    def __init__(self, device: torch.device, phases: PhaseTimer) -> None:
        self._device, self._phases = device, phases
        self._numbers = itertools.count()
        self._seconds, self._began = math.inf, time.perf_counter()

    def start(self, seconds: float) -> None:
        """Start to count the *seconds* that there are for all rates."""
        self._seconds, self._began = seconds, time.perf_counter()

    def time(self, call: Callable[[], object], calls: int = 1) -> float:
        """Mean seconds of *calls* in a row on the slowest rank, once all ranks are ready."""
        self._phases.progress.report("probe", next(self._numbers))
        return call_seconds(call, self._device, None, calls)[0]

    def remaining_seconds(self, kind: str) -> float:
        """Seconds that are left for *kind* of rates; below 0 if they are over."""
        elapsed = torch.tensor(time.perf_counter() - self._began, dtype=torch.float64)
        dist.all_reduce(elapsed, dist.ReduceOp.MAX)
        return _BUDGET_SHARE[kind] * self._seconds - float(elapsed)


def repeat(once: Callable[[], float], seconds: float, weight: int = 1) -> list[float]:
    """Seconds of repetitions of *once* after one to warm up, until they have taken *seconds* together.

    *weight* is the number of calls of whose mean ``once`` returns.
    """
    once()
    found = [once() for _ in range(MIN_REPETITIONS)]
    # all ranks repeat equally often: it follows from times that all of them have
    while len(found) < MAX_REPETITIONS and weight * math.fsum(found) < seconds:
        found.append(once())
    return found


def measured_row(rate: str, seconds: Sequence[float], **place: Any) -> dict[str, Any]:
    """Row of a *rate* by the *seconds* of its repetitions."""
    return {
        "rate": rate,
        **place,
        "seconds": statistics.median(seconds),
        "relative_sd": statistics.stdev(map(math.log, seconds)),
        "repetitions": len(seconds),
        "reason": "",
    }


def absent_row(rate: str, reason: str, **place: Any) -> dict[str, Any]:
    """Row of a *rate* that was not measured."""
    return {"rate": rate, **place, "reason": reason}
