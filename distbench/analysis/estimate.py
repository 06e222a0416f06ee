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
    """Median over trials; of a pace (``PACE``), what ``interval`` says; of a peak, the largest."""
    low: float
    """Smallest trial."""
    high: float
    """Largest trial."""
    trial_count: int
    """Trials."""
    trials: tuple[float, ...] = ()
    """Value of each trial, in the order of the rounds."""
    rounds: tuple[int, ...] = ()
    """Round of each trial."""
    interval: ConfidenceInterval | None = None
    """Of a pace that can be in a ratio: its mean with the differences between rounds taken out."""
    is_peak: bool = False
    """Whether it says how much a device must hold: then ``value`` is that of the largest trial."""

    @property
    def as_median(self) -> Estimate:
        """The median and the range, whatever the other cases of the run did."""
        if self.interval is None:
            return self
        return dataclasses.replace(self, value=statistics.median(self.trials), interval=None)

    @property
    def text(self) -> str:
        """``value`` with the digits that its interval allows."""
        return self.interval.text() if self.interval else format_number(self.value)

    @property
    def bounds(self) -> tuple[float, float]:
        """Ends of the interval, or else of the range over trials."""
        return (self.interval.low, self.interval.high) if self.interval else (self.low, self.high)

    @property
    def relative_half_width(self) -> float | None:
        """Half the width of the interval, or else of the range, over the value.

        None: of one trial, and of a peak.
        """
        if self.interval is not None:
            return None if self.interval.half_log_width is None else math.expm1(self.interval.half_log_width)
        if self.trial_count < 2 or not self.value or self.is_peak:
            return None
        return (self.high - self.low) / 2 / abs(self.value)
