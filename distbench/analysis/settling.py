"""Which cases must be measured again before the pick among them is settled.

A pick is settled when no other case can be better than it by more than 3%. Looking after every round
would find that by luck sooner or later, so the risk of 5% is divided over the looks, however many there will
be (1/2, 1/6, 1/12, ... of it), and at each look over the rivals (Bonferroni). A case drops out only when it
is excluded at its share of the risk: successive elimination (E. Even-Dar, S. Mannor and Y. Mansour 2006,
"Action elimination and stopping conditions", J. Machine Learning Research 7).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from distbench.analysis.choice import Candidate, Wish, choose
from distbench.analysis.statistics.intervals import CONFIDENCE, Interval
from distbench.analysis.statistics.quantiles import t_quantile
from distbench.core.grouping import grouped


def contenders(candidates: Sequence[Candidate], look: int) -> list[Candidate]:
    """The picks that are not settled at *look* (from 1 on), and the cases that may still be better.

    Cases on each number of devices are compared with those of the same work and precision.
    """
    places = grouped(candidates, lambda one: (one.devices, one.work, one.precision))
    return [one for place in places.values() for one in _unsettled(place, look)]


def _unsettled(place: Sequence[Candidate], look: int) -> Iterator[Candidate]:
    first = place[0]
    choice = choose(place, Wish(devices=first.devices, work=first.work, precision=first.precision))
    pick = choice.pick
    if pick is None or pick.speed is None:
        return
    allowed = math.log1p(choice.wish.unsettled)
    others = [one for one in choice.ranked if one is not pick]
    risk = (1 - CONFIDENCE) / (look * (look + 1)) / max(1, len(others))
    rivals = [one for one in others if one.speed and _lead(one.speed, pick.speed, risk) > allowed]
    if rivals:
        yield pick
        yield from rivals


def _lead(rival: Interval, pick: Interval, risk: float) -> float:
    """How much faster the rival may be but for *risk*, as a logarithm; infinite if the spread is unknown."""
    if rival.half is None or pick.half is None:
        return math.inf
    freedom = min(rival.freedom, pick.freedom)
    widening = t_quantile(1 - risk, freedom) / t_quantile((1 + CONFIDENCE) / 2, freedom)
    return math.log(rival.value / pick.value) + widening * math.hypot(rival.half, pick.half)
