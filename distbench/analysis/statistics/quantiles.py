"""Quantiles and tails of Student's t, of chi-squared and of the studentized range.

``scipy.stats`` computes them from these functions of ``scipy.special``, but takes five times as long to
import, which every command that shows a run would wait for. ``scipy`` imports a submodule when it is first
used: ``--help`` does not wait for ``scipy.special`` either.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import scipy

# nodes of the two integrals of the studentized range: within 0.5 % of scipy.stats
_WITHIN = np.linspace(-8.0, 8.0, 161)
_SCALES = (np.arange(64) + 0.5) / 64


@functools.cache
def t_quantile(probability: float, freedom: float) -> float:
    """Value that Student's t with *freedom* degrees of freedom stays below with *probability*."""
    return float(scipy.special.stdtrit(freedom, probability))


def t_two_sided(value: float, freedom: int) -> float:
    """Probability that Student's t is at least as far from 0 as *value*."""
    return float(2 * scipy.special.stdtr(freedom, -abs(value)))


@functools.cache
def chi2_quantile(probability: float, freedom: int) -> float:
    """Value that chi-squared with *freedom* degrees of freedom stays below with *probability*."""
    return float(2 * scipy.special.gammaincinv(freedom / 2, probability))


@functools.cache
def range_quantile(probability: float, count: int, freedom: float) -> float:
    """Value that the largest difference of *count* means stays below with *probability*, in their errors.

    The studentized range (J. W. Tukey 1953) over the square root of 2: in units of the standard error of a
    difference, so that for two means it is the quantile of Student's t, two-sided.
    """
    scales = np.sqrt(scipy.special.chdtri(freedom, 1 - _SCALES) / freedom)
    density = np.exp(-(_WITHIN**2) / 2) / math.sqrt(2 * math.pi) * (_WITHIN[1] - _WITHIN[0])

    def below(value: float) -> float:
        shifted = scipy.special.ndtr(_WITHIN - math.sqrt(2) * value * scales[:, None])
        return float((count * (scipy.special.ndtr(_WITHIN) - shifted) ** (count - 1) @ density).mean())

    low, high = 0.0, 1.0
    while below(high) < probability:
        low, high = high, 2 * high
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) < probability else (low, middle)
    return high
