"""Rounding envelope for older records, whose parameter updates are not weighted.

Verdicts on a stored run stay unchanged; a new run is judged by ``envelope``.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from distbench.jobs.equivalence.envelope import MAX_LIMIT, RoundingEnvelope
from distbench.jobs.equivalence.values import QUANTITY_NAMES


class UnweightedEnvelope(RoundingEnvelope):
    """Envelope that treats each place separately, with one spread for all families."""

    max_limit: ClassVar[float] = math.inf

    def problem(self, false_alarm: float) -> str:
        """Reason why its limits are useless, because one allows anything; empty if they are useful."""
        limits = self.limits(false_alarm)
        loosest = max(limits, key=limits.__getitem__)
        if limits[loosest] <= MAX_LIMIT:
            return ""
        return (
            f"the limit for {QUANTITY_NAMES[loosest]} is {limits[loosest]:.0f} times the usual rounding "
            f"error; above {MAX_LIMIT:.0f} the check can't detect a difference"
        )

    def _spreads(self, logs: np.ndarray) -> tuple[np.ndarray, int]:
        families, count = logs.shape
        pooled = math.sqrt(np.mean(np.var(logs, axis=1, ddof=1)))
        return np.full(families, pooled), (count - 1) * families

    def _smooth(self, squares: np.ndarray) -> np.ndarray:
        distances: np.ndarray = np.maximum(np.sqrt(squares), self.resolutions[:, None])
        return distances
