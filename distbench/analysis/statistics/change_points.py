"""Find lasting level shifts in a series of numbers, as opposed to noise and drift.

Days differ: a machine is a little slower for a week and then is not. So nearby points are similar, and a
method that assumes independent points finds shifts in every second history. Here ruptures proposes shifts
(the splits with the least squares), which are then tested against every mixture of white noise and drift
that the series may come from: drift is an autoregression of first order, up to a random walk, and the
mixtures that count are those inside the 95% interval of their likelihood (of the residuals: Patterson &
Thompson 1971). A shift is reported if under the least favourable of them it occurs in less than three
histories in a thousand, all possible places included; with a hundred points that is p = 3e-5 per place.
Not reported as shifts are a few bad days (Hampel 1974), as many of them in a row as a history with such days
may have, and series that a straight line fits about as well.

Measured on 2,000 simulated histories of 100 points each: false alarms in 0.1% with typical noise (2.4% a
point) and with drift from day to day of 0.8, in 0.5% if every twentieth day is 20% slower, 1.0% with the
tails of Student's t with 3 degrees of freedom, and 0.3 to 1.5% of random walks. If the numbers fall evenly by
10%, in 0.1%, with noise of 5% in 0.7% (without the line in 5%, and in 28% over 200 points). Of 300
histories a shift of 10% is found within 5 points in 91%, of 5% in 13% (22% within 10). With drift on top:
72% and 6%.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import scipy

from distbench.analysis.statistics.distributions import chi2_quantile, t_p_value
from distbench.analysis.statistics.outliers import MIN_DEVIATION, hampel_replacements

MIN_POINTS = 3
"""Minimum number of points on each side of a shift. Fewer may be bad luck, and have no known spread."""
FALSE_ALARM_RATE = 3e-3
"""Probability that a shift is reported in a history that has none."""
_DRIFT_MIXTURES = tuple((share, 0.9) for share in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0))
"""Mixtures: fraction of the variance of a point that is drift, and the correlation of drift from one point to
the next. That is above the value from day to day (0.8), as slower drift looks more like a shift."""
_RANDOM_WALK_MIXTURES = tuple((share, 0.99) for share in (0.5, 0.8, 0.9, 0.97, 1.0))
"""Mixtures whose drift is a random walk over a hundred points."""
_MIN_LOG_LIKELIHOOD_GAIN = 3.0
"""Minimum gain in log likelihood of levels over a straight line."""
_PLAUSIBLE_LOG_LIKELIHOOD_LOSS = chi2_quantile(0.95, 1) / 2
"""Maximum loss in log likelihood of a plausible mixture relative to the best."""

FloatArray = np.ndarray[Any, np.dtype[Any]]
Mixtures = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class LevelShift:
    """A change of level between two points."""

    place: int
    """Index of the first point after it."""
    before: float
    """Level of the points before it, back to the next shift or the start."""
    after: float
    chance: float
    """Probability that noise and drift alone produce one this clear at any place; at most 1."""

    @property
    def effect(self) -> float:
        """Change as a fraction of the level before; infinite from 0."""
        if self.after == self.before:
            return 0.0
        return (self.after - self.before) / abs(self.before) if self.before else float("inf")


def missing_dependency() -> str:
    """Missing package that shift detection needs, and how to install it; empty if nothing is missing."""
    lacks = importlib.util.find_spec("ruptures") is None
    return "ruptures, which is missing: pip install ruptures" if lacks else ""


def find_shifts(values: Sequence[float], min_effect: float) -> list[LevelShift]:
    """Shifts of *values*, in order, each at least *min_effect* (a fraction).

    Raises:
        ValueError: a value is not finite.
    """
    series = _CleanedSeries.of(values)
    ends = [*_shift_indices(series, min_effect), len(values)]
    starts = [0, *ends[:-1]]
    # with all shifts known, each is measured by the levels on both sides
    return [
        _measure_shift(series.segment(start, end), middle - start, first=start, searched=len(values))
        for start, (middle, end) in zip(starts, pairwise(ends), strict=False)
    ]


def shift_at(values: Sequence[float], index: int) -> LevelShift | None:
    """Change at an *index* that was known beforehand; None with too few points on a side."""
    if min(index, len(values) - index) < MIN_POINTS:
        return None
    return _measure_shift(_CleanedSeries.of(values), index, first=0, searched=1)


def fit_trend(values: Sequence[float]) -> LevelShift | None:
    """Change along the straight line through *values*, from first to last; None with too few points.

    A gradual change is no shift; it is tested against the same noise and drift.

    Raises:
        ValueError: a value is not finite.
    """
    if len(values) < 2 * MIN_POINTS:
        return None
    scaled, along = _transform(values), np.linspace(0, 1, len(values))
    ends = np.column_stack([1 - along, along])
    # outliers of the residuals of the trend: otherwise its ends would count as outliers
    tilt = _theil_sen_trend(scaled, along)
    flat = (scaled - tilt)[hampel_replacements(scaled - tilt)]
    (chance,) = _worst_case_p_values(flat + tilt, ends)
    first, last = np.linalg.lstsq(ends, flat + tilt, rcond=None)[0]
    if min(values) > 0:
        return LevelShift(0, float(np.exp(first)), float(np.exp(last)), chance)
    largest = max(map(abs, values))
    return LevelShift(0, float(first * largest), float(last * largest), chance)


def _theil_sen_trend(scaled: FloatArray, along: FloatArray) -> FloatArray:
    """Robust trend by Theil and Sen: the median of the slopes between all points."""
    i, j = np.triu_indices(len(scaled), 1)
    return np.asarray(np.median((scaled[j] - scaled[i]) / (along[j] - along[i])) * along)


def segment_level(values: Sequence[float]) -> float:
    """Level of some points: the geometric mean, or the mean if one is not positive."""
    largest = max(map(abs, values))
    if min(values) == max(values):
        return values[0]
    if min(values) > 0:
        return float(np.exp(np.mean(np.log(values))))
    # as fractions of the largest: the sum may be too large for a float
    return float(np.mean(np.asarray(values) / largest) * largest)


def _shift_indices(series: _CleanedSeries, min_effect: float, first: int = 0) -> list[int]:
    """Indices of shifts: a single one, or two around a temporary level."""
    for count in (1, 2):
        if len(series.values) < MIN_POINTS * (count + 1):
            break
        ends = _best_splits(series.values, count)
        if _is_significant(series, ends, min_effect):
            parts = [(series.segment(a, b), a) for a, b in pairwise([0, *ends])]
            within = [_shift_indices(part, min_effect, first + start) for part, start in parts]
            return sorted([*(place for part in within for place in part), *(first + e for e in ends[:-1])])
    return []


@dataclass(frozen=True)
class _CleanedSeries:
    """A series whose outliers are replaced by neighbours (Hampel, JASA 69, 1974).

    A single bad day is no level, and would inflate the noise of all other days.
    """

    values: FloatArray
    """On the scale of ``_transform``."""
    original: Sequence[float]
    """The untransformed values, with outliers replaced likewise."""
    is_outlier: FloatArray
    outlier_rate: float
    """Share of outliers among the points of the whole series."""

    @classmethod
    def of(cls, values: Sequence[float]) -> _CleanedSeries:
        """*values* without their outliers.

        Raises:
            ValueError: a value is not finite.
        """
        scaled = _transform(values)
        if len(values) <= 2 * MIN_POINTS:
            return cls(scaled, values, np.zeros(len(values), bool), 0.0)
        sources = hampel_replacements(scaled)
        is_outlier = sources != np.arange(len(values))
        return cls(
            scaled[sources],
            [values[place] for place in sources],
            is_outlier,
            float((is_outlier.sum() + 1) / (len(values) + 2)) if is_outlier.any() else 0.0,
        )

    def segment(self, start: int, end: int) -> _CleanedSeries:
        """Points from *start* up to but not including *end*."""
        return _CleanedSeries(
            self.values[start:end], self.original[start:end], self.is_outlier[start:end], self.outlier_rate
        )

    def outlier_run_p_value(self, ends: Sequence[int]) -> float:
        """Probability of a run of outliers as long as the shortest segment of *ends* has points."""
        shortest = min(int((~self.is_outlier[a:b]).sum()) for a, b in pairwise([0, *ends]))
        return float(min(1.0, len(self.values) * self.outlier_rate**shortest)) if self.outlier_rate else 0.0


def _best_splits(scaled: FloatArray, count: int) -> list[int]:
    """Ends of the segments in the least-squares fit with *count* splits."""
    # importing it takes a tenth of a second, and only history needs it
    import ruptures

    # the linear kernel is least squares, and only the library's kernel search is not written in Python
    search = ruptures.KernelCPD(kernel="linear", min_size=MIN_POINTS)
    return [int(end) for end in search.fit(scaled.reshape(-1, 1)).predict(n_bkps=count)]


def _is_significant(series: _CleanedSeries, ends: Sequence[int], min_effect: float) -> bool:
    values, room = series.values, _candidate_count(len(series.values))
    levels = [segment_level(series.original[a:b]) for a, b in pairwise([0, *ends])]
    if not all(abs(LevelShift(0, a, b, 0).effect) >= min_effect for a, b in pairwise(levels)):
        return False
    # the quick test first: most histories have no shift
    return (
        max(_worst_case_p_values(values, _step_design(ends), _DRIFT_MIXTURES)) * room <= FALSE_ALARM_RATE
        and max(_worst_case_p_values(values, _step_design(ends))) * room + series.outlier_run_p_value(ends)
        <= FALSE_ALARM_RATE
        and not _is_trend(values, ends)
    )


def _measure_shift(series: _CleanedSeries, index: int, *, first: int, searched: int) -> LevelShift:
    ends = [index, len(series.values)]
    (chance,) = _worst_case_p_values(series.values, _step_design(ends))
    sides = segment_level(series.original[:index]), segment_level(series.original[index:])
    return LevelShift(
        first + index,
        *sides,
        min(1.0, chance * _candidate_count(searched) + series.outlier_run_p_value(ends) * (searched > 1)),
    )


def _candidate_count(points: int) -> int:
    """Number of possible places of a shift among *points* points."""
    return max(1, points - 2 * MIN_POINTS + 1)


def _transform(values: Sequence[float]) -> FloatArray:
    """Logarithms of *values*, in which noise is even; fractions of the largest if one has none."""
    plain = np.asarray(values, float)
    if not np.isfinite(plain).all():
        raise ValueError("a value is not a finite number")
    if (plain > 0).all():
        return np.asarray(np.log(plain))
    largest = float(np.abs(plain).max())
    return plain / largest if largest else plain


def _worst_case_p_values(
    scaled: FloatArray, design: FloatArray, mixtures: Mixtures = _DRIFT_MIXTURES + _RANDOM_WALK_MIXTURES
) -> list[float]:
    """p values of the differences of adjacent columns, under the worst plausible mixture."""
    fits = _fit_all(scaled, design, mixtures)
    best = max(fit.restricted_log_likelihood for fit in fits)
    plausible = [
        fit.p_values()
        for fit in fits
        if fit.restricted_log_likelihood >= best - _PLAUSIBLE_LOG_LIKELIHOOD_LOSS
    ]
    return [max(same) for same in zip(*plausible, strict=True)]


def _is_trend(scaled: FloatArray, ends: Sequence[int]) -> bool:
    """True if a straight line, with any mixture, is about as likely as the levels up to *ends*."""
    line = np.column_stack([np.ones(len(scaled)), np.linspace(-1, 1, len(scaled))])
    flat, sloped = (
        max(fit.log_likelihood for fit in _fit_all(scaled, each)) for each in (_step_design(ends), line)
    )
    # searching many places for the best one raises its likelihood, for each shift again
    return flat - sloped < max(
        _MIN_LOG_LIKELIHOOD_GAIN, (len(ends) - 1) * float(np.log(_candidate_count(len(scaled))))
    )


def _step_design(ends: Sequence[int]) -> FloatArray:
    return np.repeat(np.eye(len(ends)), np.diff([0, *ends]), axis=0)


def _fit_all(
    scaled: FloatArray, design: FloatArray, mixtures: Mixtures = _DRIFT_MIXTURES + _RANDOM_WALK_MIXTURES
) -> list[_Fit]:
    return [_fit_gls(scaled, design, *mixture) for mixture in mixtures]


@dataclass(frozen=True)
class _Fit:
    """Generalised least squares of a series on a design, under one mixture."""

    restricted_log_likelihood: float
    """Log likelihood of the residuals, up to a constant of the design."""
    log_likelihood: float
    """Log likelihood, up to a constant of the series."""
    estimates: FloatArray
    covariance: FloatArray
    degrees_of_freedom: int

    def p_values(self) -> list[float]:
        """p values of the differences of adjacent columns, by Student's t."""
        contrasts = np.diff(np.eye(len(self.estimates)), axis=0)
        errors = np.sqrt(np.diag(contrasts @ self.covariance @ contrasts.T))
        return [t_p_value(value, self.degrees_of_freedom) for value in contrasts @ self.estimates / errors]


def _fit_gls(scaled: FloatArray, design: FloatArray, drift_share: float, autocorrelation: float) -> _Fit:
    weighted, log_determinant = _apply_precision_matrix(
        np.column_stack([design, scaled]), drift_share, autocorrelation
    )
    information = design.T @ weighted[:, :-1]
    estimates = scipy.linalg.solve(information, design.T @ weighted[:, -1], assume_a="pos")
    points, freedom = len(scaled), len(scaled) - design.shape[1]
    squares = float((scaled - design @ estimates) @ (weighted[:, -1] - weighted[:, :-1] @ estimates))
    variance = max(squares / freedom, MIN_DEVIATION**2)
    of_design = float(np.linalg.slogdet(information)[1])
    return _Fit(
        restricted_log_likelihood=-(log_determinant + of_design + freedom * float(np.log(variance))) / 2,
        log_likelihood=-(log_determinant + points * float(np.log(variance * freedom / points))) / 2,
        estimates=estimates,
        covariance=variance * np.linalg.inv(information),
        degrees_of_freedom=freedom,
    )


def _apply_precision_matrix(
    columns: FloatArray, drift_share: float, autocorrelation: float
) -> tuple[FloatArray, float]:
    """Inverse of the mixture's covariance times *columns*, and the log of its determinant.

    The inverse of drift's own covariance is Q, which is tridiagonal; that of the mixture is
    Q (share + (1 - share) Q)^-1.
    """
    unit = 1 / (1 - autocorrelation**2)
    main, beside = np.full(len(columns), (1 + autocorrelation**2) * unit), -autocorrelation * unit
    main[[0, -1]] = unit
    bands = np.zeros((2, len(columns)))
    bands[0] = drift_share + (1 - drift_share) * main
    bands[1, :-1] = (1 - drift_share) * beside
    root = scipy.linalg.cholesky_banded(bands, lower=True)
    solved = scipy.linalg.cho_solve_banded((root, True), columns)
    weighted = main[:, None] * solved
    weighted[1:] += beside * solved[:-1]
    weighted[:-1] += beside * solved[1:]
    # the determinant of Q is 1 / (1 - autocorrelation^2) for each point but the first
    return weighted, float(2 * np.log(root[0]).sum() - (len(columns) - 1) * np.log(unit))
