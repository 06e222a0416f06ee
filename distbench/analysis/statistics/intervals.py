"""Confidence intervals from the variance within rounds and between runs.

The interval of a case covers the true value in 95% of all cases: its variance is shrunk toward that of the
others (``variance_shrinkage.py``), which is right on average over cases, not for each. Two cases differ if
the interval of their ratio, adjusted for the number of comparisons that a choice among them makes,
excludes 1.

The trials of a run share its day, its neighbours on the machine and its placement in memory, so they can't
show how much these vary; only several runs can.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from distbench.analysis.statistics.block_model import TrialsByRound, fit_blocks
from distbench.analysis.statistics.distributions import studentized_range_quantile, t_quantile
from distbench.core.units import format_number

CONFIDENCE = 0.95
_MAX_HALF_LOG_WIDTH = 100.0
"""Half width of an interval of the logarithm beyond which its ends count as 0 and infinity."""
MIN_RUNS = 3
"""Minimum number of runs without a change between them to estimate their variance."""


@dataclass(frozen=True)
class ConfidenceInterval:
    """A number with its 95% interval, symmetric in the logarithm."""

    value: float
    half_log_width: float | None = None
    """Half the width of the interval of its natural logarithm; None: no case has two trials."""
    degrees_of_freedom: float = math.inf
    """Degrees of freedom behind ``half_log_width``."""
    trials: int = 1
    simultaneous_half_log_width: float | None = None
    """``half_log_width``, widened so that the ratios of all compared cases hold simultaneously;
    None: of this one ratio alone."""

    @property
    def low(self) -> float:
        """Lower end; the value itself if the spread is unknown."""
        return self.value * math.exp(-(self.half_log_width or 0.0))

    @property
    def high(self) -> float:
        """Upper end; the value itself if the spread is unknown."""
        return self.value * math.exp(self.half_log_width or 0.0)

    @property
    def ends(self) -> tuple[float, float] | None:
        """Both ends; None: the spread is unknown."""
        return None if self.half_log_width is None else (self.low, self.high)

    @property
    def half_width(self) -> float:
        """Half the distance of the ends; 0 if the spread is unknown."""
        return (self.high - self.low) / 2

    def text(self, value: float | None = None) -> str:
        """The number, or another *value* next to it, with the digits that the interval supports."""
        return format_number(self.value if value is None else value, self.half_width)

    def interval_text(self, ends: tuple[float, float] | None) -> str:
        """``990 (850 to 1,150)``: the number with *ends*, its own or others; None: the spread is unknown."""
        if ends is None:
            return f"{self.text()} (spread unknown)"
        return f"{self.text()} ({self.text(ends[0])} to {self.text(ends[1])})"

    def to_json(self) -> dict[str, float | None]:
        """The value and its ends, null if the spread is unknown."""
        low, high = self.ends or (None, None)
        return {"value": self.value, "low": low, "high": high}

    def for_comparisons_of(self, count: int) -> ConfidenceInterval:
        """Widen for comparisons of any two of *count* numbers (Tukey's range)."""
        if self.half_log_width is None or count < 2:
            return self
        # whole degrees of freedom: the quantile is slow, and differs little in between
        freedom = max(1, round(self.degrees_of_freedom)) if math.isfinite(self.degrees_of_freedom) else 10**6
        widening = studentized_range_quantile(CONFIDENCE, count, freedom) / _quantile(freedom)
        return dataclasses.replace(self, simultaneous_half_log_width=self.half_log_width * max(1.0, widening))

    def simultaneous_half_log_width_of(self, count: int) -> float | None:
        """``half_log_width``, widened so that *count* intervals of independent numbers hold simultaneously.

        Z. Sidak (1967), "Rectangular confidence regions for the means of multivariate normal distributions",
        J. American Statistical Association 62; None: as ``half_log_width``.
        """
        if self.half_log_width is None or count < 2:
            return self.half_log_width
        each = CONFIDENCE ** (1 / count)
        return (
            self.half_log_width
            * _quantile(self.degrees_of_freedom, (1 + each) / 2)
            / _quantile(self.degrees_of_freedom)
        )

    def half_log_width_after_selection(self, count: int) -> float:
        """``half_log_width`` toward the worse end, if this is the best of *count* tied numbers.

        Noise that made it look better helped to select it, so nearly all of the error lies on that side:
        Bonferroni over the numbers that it was selected from, which is exact if they are all alike and wide
        if not. (The posterior under a prior learnt from the other cases is a fifth narrower from three
        trials on, but holds in 88% of runs with two trials if some cases are far noisier.)
        """
        chosen = _quantile(self.degrees_of_freedom, 1 - (1 - CONFIDENCE) * (1 - 1 / (2 * count)) / count)
        return (self.half_log_width or 0.0) * chosen / _quantile(self.degrees_of_freedom)

    def ratio(self, other: ConfidenceInterval) -> ConfidenceInterval:
        """Ratio of this to *other*, both independent, with ends from their distances (MOVER).

        G. Y. Zou and A. Donner (2008), "Construction of confidence limits about effect measures",
        Statistics in Medicine 27(10): limits of a difference from those of its two sides, whose degrees of
        freedom may differ; the ratio gets the smaller ones.
        """
        reaches = [
            side.half_log_width
            if side.simultaneous_half_log_width is None
            else side.simultaneous_half_log_width
            for side in (self, other)
        ]
        known = [reach for reach in reaches if reach is not None]
        half = math.hypot(*known) if len(known) == 2 else None
        return ConfidenceInterval(
            self.value / other.value, half, min(self.degrees_of_freedom, other.degrees_of_freedom)
        )

    def differs_from(self, other: ConfidenceInterval) -> bool:
        """True if the two differ by more than the noise, or at all if the spread is unknown."""
        ratio = self.ratio(other)
        return abs(math.log(ratio.value)) > (ratio.half_log_width or 0.0)


@dataclass(frozen=True)
class Noise:
    """Typical spread of trials within their rounds."""

    scale: float
    """Standard deviation of the natural logarithm of a trial, the median over cases."""
    autocorrelation: float = 0.0
    """Autocorrelation of a case's trials from one round to the next; 0 if not significant."""


def noise_of(samples: Sequence[TrialsByRound]) -> Noise | None:
    """Noise of the trials of several cases; None if no case has two."""
    found = fit_blocks(samples)
    return (
        None if math.isnan(found.typical_deviation) else Noise(found.typical_deviation, found.autocorrelation)
    )


def intervals(samples: Sequence[TrialsByRound], *, is_exact: bool = False) -> list[ConfidenceInterval]:
    """Interval of each case; *samples* are the trials of the cases that share their noise, by round.

    With *is_exact*, as for bytes, a number does not depend on its round.

    Raises:
        ValueError: a value is not positive, or a case has none.
    """
    fit = fit_blocks(samples, counted=is_exact)
    return [
        _interval(trials, float(log), float(error), float(freedom))
        for trials, log, error, freedom in zip(
            samples, fit.logs, fit.errors, fit.degrees_of_freedom, strict=True
        )
    ]


def _interval(
    trials: TrialsByRound, log: float, error: float, degrees_of_freedom: float
) -> ConfidenceInterval:
    mean = math.exp(log)
    # a logarithm and back costs the last digits; a number that is equal in all trials is kept exactly
    same = (trial for trial in trials.values() if math.isclose(trial, mean, rel_tol=1e-12))
    value = next(same, float(f"{mean:.12g}"))
    if math.isnan(error):
        return ConfidenceInterval(value, trials=len(trials))
    return ConfidenceInterval(
        value,
        min(_MAX_HALF_LOG_WIDTH, _quantile(degrees_of_freedom) * error),
        degrees_of_freedom,
        len(trials),
    )


def _quantile(degrees_of_freedom: float, probability: float = (1 + CONFIDENCE) / 2) -> float:
    return t_quantile(probability, degrees_of_freedom)


@dataclass(frozen=True)
class RunVariance:
    """Spread of a column of one case over runs."""

    deviation: float
    """Standard deviation of the natural logarithm of a run's number around the level at that time."""
    runs: int
    levels: int = 1
    """Number of levels, separated by changes."""

    @property
    def degrees_of_freedom(self) -> int:
        """Degrees of freedom behind ``deviation``."""
        return self.runs - self.levels

    def half_log_width(self, confidence: float) -> float:
        """Half the width of the interval of the log ratio of two runs without a change between them."""
        return t_quantile((1 + confidence) / 2, self.degrees_of_freedom) * math.sqrt(2) * self.deviation


@dataclass(frozen=True)
class RunVariances:
    """Between-run variances of several cases."""

    by_case_and_column: Mapping[tuple[str, str], RunVariance] = field(default_factory=dict)
    """By case id and column."""
    absent: str = f"{MIN_RUNS} runs of a case in one environment are needed"
    """Reason why ``by_case_and_column`` lacks a case."""


NO_EARLIER_RUNS = RunVariances()
"""No other runs."""


def run_variance(levels: Sequence[Sequence[float]]) -> RunVariance | None:
    """Variance within *levels*, each the numbers of runs without a change between them.

    None if there are too few, or if one is not above 0.
    """
    freedom = sum(map(len, levels)) - len(levels)
    if freedom < MIN_RUNS - 1 or min(map(min, levels)) <= 0:
        return None
    squares = 0.0
    for values in levels:
        logs = [math.log(value) for value in values]
        middle = math.fsum(logs) / len(logs)
        squares += math.fsum((log - middle) ** 2 for log in logs)
    return RunVariance(math.sqrt(squares / freedom), sum(map(len, levels)), len(levels))
