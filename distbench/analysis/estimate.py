"""A number over the trials of a case, with its interval or range."""

from __future__ import annotations

import dataclasses
import math
import statistics
from dataclasses import dataclass

from distbench.analysis.statistics.intervals import ConfidenceInterval
from distbench.core.units import format_number


@dataclass(frozen=True)
class Estimate:
    """A number over the trials of a case. The trial is the sample, never the step."""

    value: float
    """Median over trials; for a rate (``SPEED_COLUMNS``) the mean of ``interval``; for a peak the largest."""
    low: float
    """Smallest trial."""
    high: float
    """Largest trial."""
    trial_count: int
    """Number of trials."""
    trials: tuple[float, ...] = ()
    """Value of each trial, in the order of the rounds."""
    rounds: tuple[int, ...] = ()
    """Round of each trial."""
    interval: ConfidenceInterval | None = None
    """For a rate that can form a ratio: its mean with the differences between rounds removed."""
    is_peak: bool = False
    """True if it is an amount that a device must hold; ``value`` is then that of the largest trial."""

    @property
    def as_median(self) -> Estimate:
        """The median and the range, regardless of the other cases of the run."""
        if self.interval is None:
            return self
        return dataclasses.replace(self, value=statistics.median(self.trials), interval=None)

    @property
    def text(self) -> str:
        """``value`` with the digits that its interval supports."""
        return self.interval.text() if self.interval else format_number(self.value)

    @property
    def bounds(self) -> tuple[float, float]:
        """Ends of the interval, or of the range over trials if there is none."""
        return (self.interval.low, self.interval.high) if self.interval else (self.low, self.high)

    @property
    def relative_half_width(self) -> float | None:
        """Half the width of the interval, or else of the range, over the value.

        None for a single trial, and for a peak.
        """
        if self.interval is not None:
            return None if self.interval.half_log_width is None else math.expm1(self.interval.half_log_width)
        if self.trial_count < 2 or not self.value or self.is_peak:
            return None
        return (self.high - self.low) / 2 / abs(self.value)
