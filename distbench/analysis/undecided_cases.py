"""Find the cases that need more trials to settle a recommendation.

A pick is settled when no other case can be better than it by more than 3%. Checking after every round
would find that by chance sooner or later, so the risk of 5% is divided over the checks, however many there
will be (1/2, 1/6, 1/12, ... of it), and at each check over the rivals (Bonferroni). A case drops out only
when it is excluded at its share of the risk: successive elimination (E. Even-Dar, S. Mannor and Y. Mansour
2006, "Action elimination and stopping conditions", J. Machine Learning Research 7).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from distbench.analysis.choice import Candidate, Requirements, select_case
from distbench.analysis.statistics.distributions import t_quantile
from distbench.analysis.statistics.intervals import CONFIDENCE, ConfidenceInterval
from distbench.core.grouping import group_by


def unsettled_candidates(candidates: Sequence[Candidate], round_number: int) -> list[Candidate]:
    """Picks that are not settled at *round_number* (from 1 on), and cases that may still be better.

    Cases on each number of devices are compared with those of the same work and precision.
    """
    places = group_by(candidates, lambda one: (one.devices, one.work, one.precision))
    return [one for place in places.values() for one in _unsettled_in_group(place, round_number)]


def _unsettled_in_group(place: Sequence[Candidate], round_number: int) -> Iterator[Candidate]:
    first = place[0]
    choice = select_case(
        place, Requirements(devices=first.devices, work=first.work, precision=first.precision)
    )
    pick = choice.pick
    if pick is None or pick.speed is None:
        return
    allowed = math.log1p(choice.requirements.unsettled_margin)
    others = [one for one in choice.ranked if one is not pick]
    risk = (1 - CONFIDENCE) / (round_number * (round_number + 1)) / max(1, len(others))
    rivals = [
        one for one in others if one.speed and _max_log_advantage(one.speed, pick.speed, risk) > allowed
    ]
    if rivals:
        yield pick
        yield from rivals


def _max_log_advantage(rival: ConfidenceInterval, pick: ConfidenceInterval, risk: float) -> float:
    """Largest log speed ratio of the rival at *risk*; infinite if the spread is unknown."""
    if rival.half_log_width is None or pick.half_log_width is None:
        return math.inf
    freedom = min(rival.degrees_of_freedom, pick.degrees_of_freedom)
    widening = t_quantile(1 - risk, freedom) / t_quantile((1 + CONFIDENCE) / 2, freedom)
    return math.log(rival.value / pick.value) + widening * math.hypot(
        rival.half_log_width, pick.half_log_width
    )
