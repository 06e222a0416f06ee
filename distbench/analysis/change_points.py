"""Where a series of numbers changed for good, as opposed to noise and drift.

Days differ: a machine is a little slower for a week and then is not. Nearby points are similar for
that reason alone, and a method that takes them for independent finds steps in every second history. So
ruptures proposes steps (the splits with the least squares), which are then tested against every
mixture of white noise and drift that the series may come from: drift is an autoregression of first
order, and the mixtures that count are those inside the 95 % interval of their likelihood (of the
residuals: Patterson & Thompson 1971). A step is called if the least favourable of them makes it a
matter of less than three histories in a thousand, all possible places included; with a hundred
points that is p = 3e-5 per place.

Measured on simulated histories of 100 points of 5 launches, with typical noise (2.4% per point): called in
none of 300 with noise alone and in 0.3% with drift from day to day of 0.8, 4% with drift if every other
day of a hundred is looked at; a step of 10% is found within 5 points in 93%, of 5% in 11% (28% within
10). With drift on top: 79% and 9%.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from scipy import linalg

from distbench.analysis.quantiles import chi2_quantile, t_two_sided

LEAST_POINTS = 3
"""On each side of a step. Fewer may be bad luck, and have no known spread."""
CHANCE = 3e-3
"""Chance that a step is reported in a history that has none."""
PERSISTENCE = 0.9
"""Correlation of the drift from one point to the next: above what is seen from day to day (0.8), for
slower drift looks more like a step."""

_SHARES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Fraction of the variance of a point that is drift."""
_PLAUSIBLE = chi2_quantile(0.95, 1) / 2
"""How far the log likelihood of a mixture may be below the best."""
_SMALLEST_DEVIATION = 1e-9
"""Counted numbers, such as bytes, have no spread; any step in them is certain."""

Numbers = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Step:
    """A change of level between two points."""

    place: int
    """Index of the first point after it."""
    before: float
    """Level of the points before it, back to the next step or the start."""
    after: float
    chance: float
    """Chance that noise and drift alone produce one this clear at any place; at most 1."""

    @property
    def effect(self) -> float:
        """Change as a fraction of the level before; infinite from 0."""
        if self.after == self.before:
            return 0.0
        return (self.after - self.before) / abs(self.before) if self.before else float("inf")


def steps(values: Sequence[float], least: float) -> list[Step]:
    """Steps of *values*, in order, each at least *least* (a fraction).

    Raises:
        ValueError: a value is not finite.
    """
    ends = [*_places(_scaled(values), values, least), len(values)]
    starts = [0, *ends[:-1]]
    # once all are known, each is measured by the levels on both sides
    return [
        _step(values[start:end], middle - start, first=start, searched=len(values))
        for start, (middle, end) in zip(starts, pairwise(ends), strict=False)
    ]


def step_at(values: Sequence[float], place: int) -> Step | None:
    """Change at a *place* that was known beforehand; None with too few points on a side."""
    if min(place, len(values) - place) < LEAST_POINTS:
        return None
    return _step(values, place, first=0, searched=1)


def level(values: Sequence[float]) -> float:
    """Middle of some points: the geometric mean, or the mean if one is not positive."""
    largest = max(map(abs, values))
    if min(values) == max(values):
        return values[0]
    if min(values) > 0:
        return float(np.exp(np.mean(np.log(values))))
    # as fractions of the largest: the sum may be too large for a float
    return float(np.mean(np.asarray(values) / largest) * largest)


def _places(scaled: Numbers, values: Sequence[float], least: float, first: int = 0) -> list[int]:
    """Places of steps: a single one, or two around a level that came and went."""
    for count in (1, 2):
        if len(values) < LEAST_POINTS * (count + 1):
            break
        ends = _splits(scaled, count)
        if _is_called(scaled, values, ends, least):
            parts = list(pairwise([0, *ends]))
            within = [_places(scaled[a:b], values[a:b], least, first + a) for a, b in parts]
            return sorted([*(place for part in within for place in part), *(first + e for e in ends[:-1])])
    return []


def _splits(scaled: Numbers, count: int) -> list[int]:
    """Ends of the parts into which *count* splits leave the least squares."""
    # importing it takes a tenth of a second, and only history needs it
    import ruptures

    # the linear kernel is least squares, and the only search of the library that is not in Python
    search = ruptures.KernelCPD(kernel="linear", min_size=LEAST_POINTS)
    return [int(end) for end in search.fit(scaled.reshape(-1, 1)).predict(n_bkps=count)]


def _is_called(scaled: Numbers, values: Sequence[float], ends: Sequence[int], least: float) -> bool:
    levels = [level(values[a:b]) for a, b in pairwise([0, *ends])]
    large = all(abs(Step(0, a, b, 0).effect) >= least for a, b in pairwise(levels))
    return large and max(_chances(scaled, ends)) * _room(len(values)) <= CHANCE


def _step(values: Sequence[float], place: int, *, first: int, searched: int) -> Step:
    (chance,) = _chances(_scaled(values), [place, len(values)])
    sides = level(values[:place]), level(values[place:])
    return Step(first + place, *sides, min(1.0, chance * _room(searched)))


def _room(points: int) -> int:
    """Number of places among so many points where a step may be."""
    return max(1, points - 2 * LEAST_POINTS + 1)


def _scaled(values: Sequence[float]) -> Numbers:
    """*values* as logarithms, in which noise is even; as fractions of the largest if one has none."""
    plain = np.asarray(values, float)
    if not np.isfinite(plain).all():
        raise ValueError("a value is not a finite number")
    if (plain > 0).all():
        return np.asarray(np.log(plain))
    largest = float(np.abs(plain).max())
    return plain / largest if largest else plain


def _chances(scaled: Numbers, ends: Sequence[int]) -> list[float]:
    """p of each step between the parts up to *ends*, under the worst plausible mixture."""
    fits = [_fit(scaled, ends, share) for share in _SHARES]
    best = max(likelihood for likelihood, _ in fits)
    plausible = [chances for likelihood, chances in fits if likelihood >= best - _PLAUSIBLE]
    return [max(same) for same in zip(*plausible, strict=True)]


def _fit(scaled: Numbers, ends: Sequence[int], share: float) -> tuple[float, list[float]]:
    """Log likelihood of a mixture, up to a constant, and the p of each step under it.

    Generalised least squares with a level for each part, and Student's t of each difference.
    """
    parts = np.repeat(np.eye(len(ends)), np.diff([0, *ends]), axis=0)
    weighted, log_determinant = _weighted(np.column_stack([parts, scaled]), share)
    information = parts.T @ weighted[:, :-1]
    levels = linalg.solve(information, parts.T @ weighted[:, -1], assume_a="pos")
    freedom = len(scaled) - len(ends)
    squares = float((scaled - parts @ levels) @ (weighted[:, -1] - weighted[:, :-1] @ levels))
    variance = max(squares / freedom, _SMALLEST_DEVIATION**2)
    of_levels = float(np.linalg.slogdet(information)[1])
    likelihood = -(log_determinant + of_levels + freedom * np.log(variance)) / 2
    contrasts = np.diff(np.eye(len(ends)), axis=0)
    errors = np.sqrt(np.diag(contrasts @ (variance * np.linalg.inv(information)) @ contrasts.T))
    return float(likelihood), [t_two_sided(value, freedom) for value in contrasts @ levels / errors]


def _weighted(columns: Numbers, share: float) -> tuple[Numbers, float]:
    """Inverse of the mixture's covariance times *columns*, and the log of its determinant.

    The inverse of drift's own covariance is Q, of three diagonals; that of the mixture is
    Q (share + (1 - share) Q)^-1. The determinant is up to a constant that all shares have in common.
    """
    unit = 1 / (1 - PERSISTENCE**2)
    main, beside = np.full(len(columns), (1 + PERSISTENCE**2) * unit), -PERSISTENCE * unit
    main[[0, -1]] = unit
    bands = np.zeros((2, len(columns)))
    bands[0] = share + (1 - share) * main
    bands[1, :-1] = (1 - share) * beside
    root = linalg.cholesky_banded(bands, lower=True)
    solved = linalg.cho_solve_banded((root, True), columns)
    weighted = main[:, None] * solved
    weighted[1:] += beside * solved[:-1]
    weighted[:-1] += beside * solved[1:]
    return weighted, float(2 * np.log(root[0]).sum())
