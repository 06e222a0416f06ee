"""How sure a number is: intervals of medians, from the spread of the trials of this run.

Three trials of one case say little about their own spread, and one disturbed trial ruins it. The
trials of all cases together say a lot, so the noise scale is that of the run, unless a case is
clearly noisier by itself.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from distbench.analysis.quantiles import chi2_quantile, t_quantile

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A median over trials with its 95% interval, symmetric in the logarithm."""

    value: float
    half: float | None = None
    """Half the width of the interval of its natural logarithm; None: no case has two trials."""

    @property
    def low(self) -> float:
        """Lower end; the value itself if the spread is unknown."""
        return self.value * math.exp(-(self.half or 0.0))

    @property
    def high(self) -> float:
        """Upper end; the value itself if the spread is unknown."""
        return self.value * math.exp(self.half or 0.0)

    def to_json(self) -> dict[str, float | None]:
        """The value and its ends, null if the spread is unknown."""
        low, high = (None, None) if self.half is None else (self.low, self.high)
        return {"value": self.value, "low": low, "high": high}

    def ratio(self, other: Interval) -> Interval:
        """Ratio of this to *other*; the two are independent."""
        known = self.half is not None and other.half is not None
        half = math.hypot(self.half or 0.0, other.half or 0.0) if known else None
        return Interval(self.value / other.value, half)

    def is_apart_from(self, other: Interval) -> bool:
        """Whether the two differ by more than the noise; if the spread is unknown, whether they differ."""
        ratio = self.ratio(other)
        return abs(math.log(ratio.value)) > (ratio.half or 0.0)


@dataclass(frozen=True)
class Noise:
    """The spread of trials around the median of their case."""

    scale: float
    """Standard deviation of the natural logarithm of a trial."""
    freedom: int
    """Degrees of freedom behind it."""

    def interval(self, values: Sequence[float]) -> Interval:
        """Median of the positive *values* of one case, with its interval."""
        scale = max(self.scale, _own(values))
        # with the degrees of freedom of the run; a single case would have very few
        half = t_quantile((1 + CONFIDENCE) / 2, self.freedom) * scale * _of_median(len(values))
        return Interval(statistics.median(values), half)


def noise_of(samples: Sequence[Sequence[float]]) -> Noise | None:
    """Noise of the trials of several cases; None if no case has two.

    The median over cases of the standard deviation, each divided by the median of its own
    distribution (chi with n - 1 degrees of freedom), so that a disturbed trial in one case, which
    makes that case's deviation large, moves it little.
    """
    repeated = [values for values in samples if len(values) > 1]
    if not repeated:
        return None
    freedoms = [len(values) - 1 for values in repeated]
    medians = [math.sqrt(chi2_quantile(0.5, freedom) / freedom) for freedom in freedoms]
    scales = [_deviation(values) / middle for values, middle in zip(repeated, medians, strict=True)]
    return Noise(statistics.median(scales), sum(freedoms))


def intervals(samples: Sequence[Sequence[float]]) -> list[Interval]:
    """Interval of each case; *samples* are the trials of the cases that share their noise.

    Raises:
        ValueError: a value is not positive, or a case has none.
    """
    noise = noise_of(samples)
    return [noise.interval(values) if noise else Interval(statistics.median(values)) for values in samples]


def _own(values: Sequence[float]) -> float:
    """Deviation of a case without its farthest trial, which may have been disturbed."""
    if len(values) < 3:
        return 0.0
    middle = math.log(statistics.median(values))
    kept = sorted(values, key=lambda value: abs(math.log(value) - middle))[:-1]
    return _deviation(kept)


def _deviation(values: Sequence[float]) -> float:
    return statistics.stdev(math.log(value) for value in values)


def _of_median(count: int) -> float:
    """Standard error of the median of *count* normal values of deviation 1.

    Up to two it is the mean's; from there on at most that of large samples, sqrt(pi / (2 n)).
    """
    return 1 / math.sqrt(count) if count < 3 else math.sqrt(math.pi / (2 * count))
