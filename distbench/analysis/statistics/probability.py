"""Tail probabilities of counts, and Holm's correction."""

from __future__ import annotations

import math
from collections.abc import Sequence


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
