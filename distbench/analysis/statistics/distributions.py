"""Quantiles and tail probabilities of distributions, and Holm's correction.

``scipy.stats`` computes the quantiles from these functions of ``scipy.special``, but takes five times as long
to import, which would delay every command that shows a run. ``scipy`` imports a submodule on first
use: ``--help`` does not wait for ``scipy.special`` either.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
import scipy

# nodes of the two integrals of the studentized range: within 0.5 % of scipy.stats
_NORMAL_NODES = np.linspace(-8.0, 8.0, 161)
_CHI_NODES = (np.arange(64) + 0.5) / 64


@functools.cache
def t_quantile(probability: float, degrees_of_freedom: float) -> float:
    """Quantile of Student's t at *probability*."""
    return float(scipy.special.stdtrit(degrees_of_freedom, probability))


def t_p_value(value: float, degrees_of_freedom: int) -> float:
    """Two-sided p value of *value* under Student's t."""
    return float(2 * scipy.special.stdtr(degrees_of_freedom, -abs(value)))


@functools.cache
def chi2_quantile(probability: float, degrees_of_freedom: int) -> float:
    """Quantile of chi-squared at *probability*."""
    return float(2 * scipy.special.gammaincinv(degrees_of_freedom / 2, probability))


@functools.cache
def studentized_range_quantile(probability: float, count: int, degrees_of_freedom: float) -> float:
    """Quantile at *probability* of the largest difference of *count* means.

    The studentized range (J. W. Tukey 1953) over the square root of 2: in units of the standard error of a
    difference, so for two means it is the quantile of Student's t, two-sided.
    """
    scales = np.sqrt(scipy.special.chdtri(degrees_of_freedom, 1 - _CHI_NODES) / degrees_of_freedom)
    density = np.exp(-(_NORMAL_NODES**2) / 2) / math.sqrt(2 * math.pi) * (_NORMAL_NODES[1] - _NORMAL_NODES[0])

    def below(value: float) -> float:
        shifted = scipy.special.ndtr(_NORMAL_NODES - math.sqrt(2) * value * scales[:, None])
        return float((count * (scipy.special.ndtr(_NORMAL_NODES) - shifted) ** (count - 1) @ density).mean())

    low, high = 0.0, 1.0
    while below(high) < probability:
        low, high = high, 2 * high
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) < probability else (low, middle)
    return high


def fisher_exact_tail(failures: int, trials: int, other_failures: int, other_trials: int) -> float:
    """Probability of at least *failures* in *trials* at the failure rate of *other_trials*.

    Fisher's exact test, one-sided: the tail of the hypergeometric distribution (R. A. Fisher, Statistical
    Methods for Research Workers, 5th edition 1934, section 21.02).
    """
    failed = failures + other_failures
    ways = (
        math.comb(trials, count) * math.comb(other_trials, failed - count)
        for count in range(failures, min(trials, failed) + 1)
    )
    return sum(ways) / math.comb(trials + other_trials, failed)


def poisson_binomial_tail(count: int, probabilities: Sequence[float]) -> float:
    """Probability of at least *count* of independent events with *probabilities*.

    The tail of the Poisson binomial distribution, for equal *probabilities* of the binomial one, by recursion
    (R. E. Barlow and K. D. Heidtmann, IEEE Transactions on Reliability R-33(4), 1984).
    """
    # shape (events + 1,): probability of each number of them
    numbers = [1.0]
    for chance in probabilities:
        without, with_it = [*numbers, 0.0], [0.0, *numbers]
        numbers = [no * (1 - chance) + yes * chance for no, yes in zip(without, with_it, strict=True)]
    return math.fsum(numbers[max(count, 0) :])


def holm_adjusted(p_values: Sequence[float]) -> list[float]:
    """*p_values* adjusted for their number (S. Holm, Scandinavian Journal of Statistics 6, 1979).

    Valid under any dependence: the chance of any false rejection at a level is at most that level.
    """
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted
