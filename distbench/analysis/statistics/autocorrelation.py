"""Autocorrelation of successive trials of a case, and how it widens intervals.

Disturbances that last over rounds and affect all cases alike are removed with the rounds. Those that last for
one case alone (a file cache, a placement in memory, a throttled device) are not: then n trials have less
information than n independent ones, and their deviation from their own mean hides it. One first-order
autocorrelation is estimated for all cases together from their residuals (S. J. Prais and C. B. Winsten 1954,
"Trend estimators and serial correlation", Cowles Commission discussion paper 383); the residuals' own is
smaller, as their mean was removed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Rounds = tuple[int, ...]
"""Rounds of a case's trials, in ascending order."""
_GRID = np.linspace(0.0, 0.95, 39)
"""Candidate values of the autocorrelation."""
_MIN_Z_SCORE = 1.28
"""Minimum excess over independent trials, in standard errors; by chance in 1 run of 10."""


def autocorrelation(residuals: Sequence[np.ndarray], rounds: Sequence[Rounds], freedom: float) -> float:
    """Autocorrelation of a case from one round to the next; 0 if not significant.

    Args:
        residuals: Residuals of each case's trials, in units of their deviation.
        rounds: Rounds of each case.
        freedom: Degrees of freedom behind the residuals.
    """
    informative = [
        (left, _centered_moments(of), _has_successor(of))
        for left, of in zip(residuals, rounds, strict=True)
        if len(of) > 2
    ]
    squares = sum(float(left @ left) for left, _, _ in informative)
    if not squares or freedom < 1:
        return 0.0
    found = sum(float(left[:-1][near] @ left[1:][near]) for left, _, near in informative) / squares
    expected: np.ndarray = np.sum([each.products for _, each, _ in informative], axis=0)
    expected = expected / np.sum([each.squares for _, each, _ in informative], axis=0)
    space = sum(len(left) - 1 for left, _, _ in informative)
    of_form = sum(each.of_form for _, each, _ in informative) / space - expected[0] ** 2
    # standard error of a ratio of quadratic forms in independent normal numbers
    error = math.sqrt(2 * max(0.0, of_form) / (freedom + 2))
    if found - expected[0] <= _MIN_Z_SCORE * error:
        return 0.0
    return float(_GRID[np.abs(expected - found).argmin()])


@functools.cache
def error_inflation(rho: float, rounds: Rounds) -> float:
    """Ratio of the error of the mean of trials in *rounds* with autocorrelation *rho* to that without.

    Both are based on the deviation of the trials from their mean, which an autocorrelation makes smaller.
    """
    count = len(rounds)
    if count < 2 or not rho:
        return 1.0
    total = float(_correlations(rounds, np.array([rho])).sum())
    return math.sqrt(total * (count - 1) / (count * (count - total / count)))


@dataclass(frozen=True)
class _CenteredMoments:
    """Expected moments of trials of deviation 1 after their mean is subtracted."""

    products: np.ndarray
    """Expected sum of products of neighbours, by autocorrelation (``_GRID``)."""
    squares: np.ndarray
    """Expected sum of squares."""
    of_form: float
    """Trace of the square of the quadratic form that sums the products."""


@functools.cache
def _centered_moments(rounds: Rounds) -> _CenteredMoments:
    matrices, count, near = _correlations(rounds, _GRID), len(rounds), _has_successor(rounds)
    rows, total = matrices.sum(axis=2), matrices.sum(axis=(1, 2))
    neighbours = np.diagonal(matrices, 1, axis1=1, axis2=2)[:, near].sum(axis=1)
    both = (rows[:, :-1] + rows[:, 1:])[:, near].sum(axis=1)
    products = neighbours - both / count + near.sum() * total / count**2
    form = np.diag(near / 2, 1) + np.diag(near / 2, -1)
    form = form - form.mean(axis=0) - form.mean(axis=1)[:, None] + form.mean()
    return _CenteredMoments(products, count - total / count, float((form**2).sum()))


def _has_successor(rounds: Rounds) -> np.ndarray:
    """Mask of the trials that are followed by one of the next round."""
    found: np.ndarray = np.diff(rounds) == 1
    return found


def _correlations(rounds: Rounds, rhos: np.ndarray) -> np.ndarray:
    """Correlations of the trials of a case, shape (rhos, rounds, rounds)."""
    lags = np.abs(np.subtract.outer(rounds, rounds))
    # 0 to the power of 0 is 1
    found: np.ndarray = np.power(rhos[:, None, None], lags)
    return found
