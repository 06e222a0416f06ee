"""Detection of loss spikes; without torch, so that any process can use it."""

import math
import statistics
from collections import deque

# OLMo 2's "spike score" (arXiv 2501.00656): seven standard deviations from the mean of the last 1000
_DEVIATIONS, _WINDOW = 7.0, 1000
# fewer values give no usable standard deviation
_MIN_VALUES = 20


class LossSpikeDetector:
    """Detector of values far above the earlier ones."""

    def __init__(self) -> None:
        self._earlier: deque[float] = deque(maxlen=_WINDOW)

    def check(self, value: float) -> str:
        """Describe why *value* is a spike; empty: it is none. Then add it to the earlier values."""
        limit = math.inf
        if len(self._earlier) >= _MIN_VALUES:
            mean, deviation = statistics.fmean(self._earlier), statistics.pstdev(self._earlier)
            limit = mean + _DEVIATIONS * deviation
        self._earlier.append(value)
        rule = f"above {limit:.4g}, {_DEVIATIONS:g} standard deviations over the mean of the earlier steps"
        return rule if value > limit else ""
