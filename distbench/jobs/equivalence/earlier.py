"""The envelope of records whose moves are not weighted, as it was when they were made.

What was said about a stored run stays so; a new run is judged by ``envelope``.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from distbench.jobs.equivalence.envelope import LOOSEST, Envelope
from distbench.jobs.equivalence.values import FAMILIES


class EarlierEnvelope(Envelope):
    """Knows each place by itself, and has one spread for all families."""

    loosest: ClassVar[float] = math.inf

    def flaw(self, false_alarm: float) -> str:
        """Why its limits are of no use, one of them allowing whatever there is; empty if they are of use."""
        limits = self.limits(false_alarm)
        loosest = max(limits, key=limits.__getitem__)
        if limits[loosest] <= LOOSEST:
            return ""
        return (
            f"the limit on {FAMILIES[loosest]} is {limits[loosest]:.0f} times what rounding usually makes; "
            f"above {LOOSEST:.0f} nothing is told apart"
        )

    def _spreads(self, logs: np.ndarray) -> tuple[np.ndarray, int]:
        families, count = logs.shape
        pooled = math.sqrt(np.mean(np.var(logs, axis=1, ddof=1)))
        return np.full(families, pooled), (count - 1) * families

    def _smoothed(self, squares: np.ndarray) -> np.ndarray:
        distances: np.ndarray = np.maximum(np.sqrt(squares), self.resolutions[:, None])
        return distances
