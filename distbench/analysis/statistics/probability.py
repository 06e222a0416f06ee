"""Chances of counts, and of the smallest of several chances."""

from __future__ import annotations

import math
from collections.abc import Sequence


def fisher(bad: int, trials: int, others_bad: int, others: int) -> float:
    """Chance of *bad* or more of *trials* if they fail as often as the *others* do.

    Fisher's exact test, one-sided: the tail of the hypergeometric distribution (R. A. Fisher, Statistical
    Methods for Research Workers, 5th edition 1934, section 21.02).
    """
    failed = bad + others_bad
    ways = (
        math.comb(trials, count) * math.comb(others, failed - count)
        for count in range(bad, min(trials, failed) + 1)
    )
    return sum(ways) / math.comb(trials + others, failed)


def at_least(count: int, chances: Sequence[float]) -> float:
    """Chance that *count* or more of independent events happen, whose own chances are *chances*.

    The tail of Poisson's binomial distribution, of equal *chances* the binomial one, by recursion (R. E.
    Barlow and K. D. Heidtmann, IEEE Transactions on Reliability R-33(4), 1984).
    """
    # shape (events + 1,): chance of each number of them
    numbers = [1.0]
    for chance in chances:
        without, with_it = [*numbers, 0.0], [0.0, *numbers]
        numbers = [no * (1 - chance) + yes * chance for no, yes in zip(without, with_it, strict=True)]
    return math.fsum(numbers[max(count, 0) :])


def holm(chances: Sequence[float]) -> list[float]:
    """*chances* adjusted for their number (S. Holm, Scandinavian Journal of Statistics 6, 1979).

    Whatever depends on what: those below a level are all right, but for one family in 1/level.
    """
    order = sorted(range(len(chances)), key=lambda place: chances[place])
    adjusted, largest = [0.0] * len(chances), 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, (len(chances) - rank) * chances[place]))
        adjusted[place] = largest
    return adjusted
