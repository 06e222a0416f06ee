"""Drawn runs, whose right answers are known: what intervals hold and picks cost."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from distbench.analysis.choice import Candidate, Requirements, Selection, select_case
from distbench.analysis.statistics.intervals import ConfidenceInterval, intervals, noise_of

CASES = 18
NOISE = 0.06
Draw = Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]


def speeds(rng: np.random.Generator) -> np.ndarray:
    return np.log(1 - 0.3 * rng.random(CASES))


def normal(rng: np.random.Generator, trials: int) -> tuple[np.ndarray, np.ndarray]:
    return speeds(rng), NOISE * rng.standard_normal((CASES, trials))


def heavy_tails(rng: np.random.Generator, trials: int) -> tuple[np.ndarray, np.ndarray]:
    return speeds(rng), NOISE * rng.standard_t(3, (CASES, trials)) / math.sqrt(3)


@dataclass
class Tally:
    """What became of the drawn runs."""

    held: list[float] = field(default_factory=list)
    """Part of the cases whose interval holds the truth."""
    headline: list[bool] = field(default_factory=list)
    """Whether the pick's interval does, chosen as it is."""
    together: list[bool] = field(default_factory=list)
    """Whether the intervals of the ratios of all cases to the pick do."""
    false: list[bool] = field(default_factory=list)
    """Whether the pick is said to beat a case that is as fast."""
    loss: list[float] = field(default_factory=list)
    """How much slower than the fastest case the pick truly is."""


def tally(draw: Draw, trials: int, runs: int, seed: int) -> Tally:
    rng, found = np.random.default_rng(seed), Tally()
    for _ in range(runs):
        truth, noise = draw(rng, trials)
        measured = [dict(enumerate(map(float, row))) for row in np.exp(truth[:, None] + noise)]
        choice = select_case(
            [candidate(i, each.for_comparisons_of(CASES)) for i, each in enumerate(intervals(measured))],
            Requirements(),
        )
        record(found, choice, truth)
    return found


def candidate(place: int, speed: ConfidenceInterval) -> Candidate:
    return Candidate(str(place), str(place), str(place), 2, "fp32", "", place, speed)


def record(found: Tally, choice: Selection, truth: np.ndarray) -> None:
    by_place = {int(one.id): one.speed for one in choice.ranked}
    pick = int(choice.pick.id)
    mine = by_place[pick]
    found.held.append(np.mean([held(each, truth[place]) for place, each in by_place.items()]))
    low = math.log(mine.value) - mine.half_log_width_after_selection(len(choice.tied))
    found.headline.append(low <= truth[pick] <= math.log(mine.high))
    ratios = {place: each.ratio(mine) for place, each in by_place.items() if place != pick}
    found.together.append(all(held(ratio, truth[place] - truth[pick]) for place, ratio in ratios.items()))
    beaten = [
        place for place, each in by_place.items() if each.differs_from(mine) and each.value < mine.value
    ]
    found.false.append(any(truth[place] >= truth[pick] for place in beaten))
    found.loss.append(1 - math.exp(truth[pick] - truth.max()))


def held(interval: ConfidenceInterval, log: float) -> bool:
    return math.log(interval.low) <= log <= math.log(interval.high)


def lasting(cases: int, rounds: int, rho: float, rng: np.random.Generator) -> np.ndarray:
    """Logarithms of trials of equal cases, of which each resembles the one before."""
    logs = rng.standard_normal((cases, rounds + 20))
    for number in range(1, rounds + 20):
        logs[:, number] = rho * logs[:, number - 1] + math.sqrt(1 - rho**2) * logs[:, number]
    return 0.03 * logs[:, 20:]


def coverage(cases: int, rounds: int, rho: float, runs: int) -> tuple[float, float]:
    """Fraction of intervals that hold the truth, and of runs in which an autocorrelation is told."""
    rng, held, told = np.random.default_rng(3), [], []
    for _ in range(runs):
        samples = [dict(enumerate(map(float, row))) for row in np.exp(lasting(cases, rounds, rho, rng))]
        held += [each.low <= 1 <= each.high for each in intervals(samples)]
        told.append(noise_of(samples).autocorrelation > 0)
    return float(np.mean(held)), float(np.mean(told))
