"""Compare cases with their reference over seeds, with confidence intervals.

A seed determines the weights and the batches of every arm, so part of the result of a training belongs to
its seed. Effects of arms and seeds are assumed to add up (the randomised blocks of Fisher, The Design of
Experiments, 1935): the remainder is the noise of one training, which all arms together estimate far better
than the few trainings of one. But an arm may be noisier than the others, by more than three trainings show,
and so may the reference: every p-value allows for this (``analysis.statistics.variance_shrinkage``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from distbench.analysis.statistics.block_model import SINGULAR
from distbench.analysis.statistics.variance_shrinkage import (
    VariancePosterior,
    mixture_quantiles,
    variance_posterior,
)

SeedResults = Mapping[str, Mapping[int, float]]
"""Arm -> seed -> result of its training."""
_MIN_DEVIATION = 1e-9
"""Smallest relative deviation: trainings that differ only by rounding have no meaningful spread."""


@dataclass(frozen=True)
class Contrast:
    """Difference of an arm from the reference, without the effects of seeds.

    Each row of the two arrays has possible standard errors: the first if the arm may be noisier than others,
    the second if the reference may be. Results are the more cautious of the two: a correction for one noisy
    side need not include the other.
    """

    difference: float
    errors: np.ndarray
    probabilities: np.ndarray
    """Probability of each of ``errors``; every row sums to 1."""

    @property
    def p_above(self) -> float:
        """Probability of a difference as large or larger if there is none."""
        return self._tail_probability(self.difference)

    @property
    def p_below(self) -> float:
        """Probability of a difference as small or smaller if there is none."""
        return self._tail_probability(-self.difference)

    def upper_bound(self, confidence: float) -> float:
        """Upper end of the one-sided interval of the difference; *confidence* above 0.5."""
        return self.difference + float(
            mixture_quantiles(self.errors, self.probabilities, 1 - confidence).max()
        )

    def _tail_probability(self, difference: float) -> float:
        return float((self.probabilities * scipy.special.ndtr(-difference / self.errors)).sum(axis=1).max())


def contrasts(arms: SeedResults, reference: Mapping[int, float]) -> dict[str, Contrast]:
    """Contrast of each of *arms* that has at least two seeds in common with the *reference*."""
    shared = {
        name: {seed: value for seed, value in arm.items() if seed in reference} for name, arm in arms.items()
    }
    together = {name: arm for name, arm in shared.items() if len(arm) > 1}
    if len(together) < 2:
        return {name: _paired_contrast(arm, reference) for name, arm in together.items()}
    fit = _fit([reference, *together.values()])
    return {name: fit.contrast(place) for place, name in enumerate(together, 1)}


def _paired_contrast(arm: Mapping[int, float], reference: Mapping[int, float]) -> Contrast:
    """Contrast of a single arm by its pairs: Student's t."""
    pairs = np.array([value - reference[seed] for seed, value in arm.items()])
    smallest = _rounding_variance([*arm.values(), *reference.values()])
    own = np.array([max(float(pairs.var(ddof=1)), smallest)])
    found = variance_posterior(own, np.array([len(pairs) - 1.0]))
    return Contrast(float(pairs.mean()), np.sqrt(found.variances / len(pairs))[None], found.probabilities)


@dataclass(frozen=True)
class _SeedBlockFit:
    """Least-squares fit of a level per arm and one per seed; the first arm is the reference."""

    arm: np.ndarray
    """Arm index of each training."""
    values: np.ndarray
    """Result of each training."""
    level_weights: np.ndarray
    """Weight of each training in the level of each arm, of shape (arms, trainings)."""
    spreads: VariancePosterior

    def contrast(self, arm: int) -> Contrast:
        """Contrast of arm number *arm* with the reference."""
        weights = self.level_weights[arm] - self.level_weights[0]
        parts = np.bincount(self.arm, weights**2)
        shares = parts * self.spreads.typical
        sides = [arm, 0]
        rest = np.array([[shares.sum() - shares[side]] for side in sides])
        errors = np.sqrt(rest + parts[sides][:, None] * self.spreads.variances)
        return Contrast(float(weights @ self.values), errors, self.spreads.probabilities[sides])


def _fit(arms: Sequence[Mapping[int, float]]) -> _SeedBlockFit:
    """Fit levels of arms and seeds that add up, as in ``analysis.statistics.block_model``.

    There each case has its own interval; here contrasts with one reference share its error and its seeds. A
    noisier side is combined with the typical spread of the other side: if intervals allowed for both at
    once, a case of 23 that takes a fifth more steps would be detected in a third of suites (500 drawn)
    instead of in six of ten.
    """
    seeds = sorted(set().union(*arms[1:]))
    cells = [(arm, seed, arms[arm][seed]) for arm in range(len(arms)) for seed in seeds if seed in arms[arm]]
    arm = np.array([place for place, _, _ in cells])
    values = np.array([value for _, _, value in cells])
    design = np.zeros((len(cells), len(arms) + len(seeds)))
    for row, (place, seed, _) in enumerate(cells):
        design[row, [place, len(arms) + seeds.index(seed)]] = 1
    weights = np.ones(len(arms))
    # in the second iteration, noisy arms have little weight in the effects of seeds
    for _ in range(2):
        weighted = design * weights[arm][:, None]
        solved = np.linalg.pinv(design.T @ weighted, rcond=SINGULAR) @ weighted.T
        freedoms = np.bincount(arm, 1 - (design * solved.T).sum(axis=1))
        freedoms[freedoms < 1e-9] = 0.0
        squares = np.bincount(arm, (values - design @ (solved @ values)) ** 2)
        own = squares / np.where(freedoms > 0, freedoms, 1.0)
        found = variance_posterior(np.maximum(own, _rounding_variance(values)), freedoms)
        weights = np.median(found.typical) / found.typical
    return _SeedBlockFit(arm, values, solved[: len(arms)], found)


def _rounding_variance(values: Sequence[float] | np.ndarray) -> float:
    """Variance of *values* from rounding alone."""
    return (_MIN_DEVIATION * max(1.0, float(np.abs(values).max()))) ** 2
