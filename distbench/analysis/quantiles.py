"""Quantiles and tails of Student's t and of chi-squared.

``scipy.stats`` computes them by these functions of ``scipy.special``, but takes five times as long to
import, which every command that shows a run would wait for.
"""

from __future__ import annotations

import functools

from scipy import special


@functools.cache
def t_quantile(probability: float, freedom: int) -> float:
    """Value that Student's t with *freedom* degrees of freedom stays below with *probability*."""
    return float(special.stdtrit(freedom, probability))


def t_two_sided(value: float, freedom: int) -> float:
    """Probability that Student's t is at least as far from 0 as *value*."""
    return float(2 * special.stdtr(freedom, -abs(value)))


@functools.cache
def chi2_quantile(probability: float, freedom: int) -> float:
    """Value that chi-squared with *freedom* degrees of freedom stays below with *probability*."""
    return float(2 * special.gammaincinv(freedom / 2, probability))
