"""The envelope of records whose moves are not weighted, as it was when they were made.

What was said about a stored run stays so; a new run is judged by ``envelope``.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from distbench.jobs.equivalence.envelope import LOOSEST, Envelope


class EarlierEnvelope(Envelope):
    """Knows each place by itself, and has one spread for all families."""

    loosest: ClassVar[float] = math.inf

    def broken(self, false_alarm: float) -> tuple[str, float] | None:
        """The family whose limit is loosest, and that limit, if it is of no use."""
        limits = self.limits(false_alarm)
        loosest = max(limits, key=limits.__getitem__)
        return (loosest, limits[loosest]) if limits[loosest] > LOOSEST else None

    def _spreads(self, logs: np.ndarray) -> tuple[np.ndarray, int]:
        families, count = logs.shape
        pooled = math.sqrt(np.mean(np.var(logs, axis=1, ddof=1)))
        return np.full(families, pooled), (count - 1) * families

    def _smoothed(self, squares: np.ndarray) -> np.ndarray:
        distances: np.ndarray = np.maximum(np.sqrt(squares), self.resolutions[:, None])
        return distances
