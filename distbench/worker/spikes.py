"""Which losses stand out; without torch, so that anyone can use the rule."""

from __future__ import annotations

import math
import statistics
from collections import deque

# OLMo 2's "spike score" (arXiv 2501.00656): seven standard deviations from the mean of the last 1000
_DEVIATIONS, _WINDOW = 7.0, 1000
# fewer values tell nothing of their spread
_LEAST = 20


class Spikes:
    """Values that stand out of those before them."""

    def __init__(self) -> None:
        self._before: deque[float] = deque(maxlen=_WINDOW)
        self._limit = math.inf

    def is_spike(self, value: float) -> bool:
        """Return whether *value* lies far above those before it; it is one of them from then on."""
        self._limit = math.inf
        if len(self._before) >= _LEAST:
            mean, deviation = statistics.fmean(self._before), statistics.pstdev(self._before)
            self._limit = mean + _DEVIATIONS * deviation
        self._before.append(value)
        return value > self._limit

    def told(self) -> str:
        """Return the rule by which the last value was one."""
        return (
            f"above {self._limit:.4g}, the mean of the steps before and {_DEVIATIONS:g} standard deviations"
        )
