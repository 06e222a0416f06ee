"""Trainings of several arms from the same seeds: how each differs from the reference, and how sure that is.

A seed decides the weights and the batches of every arm alike, so part of what a training comes to
belongs to its seed. Arms and seeds are taken to add up (the randomised blocks of Fisher, The Design of
Experiments, 1935): what both leave is the noise of one training, which all arms together tell
far better than the few trainings of one. But an arm may be noisier than the others, more than three
trainings show, and so may the reference: what either may be (``analysis.shrinkage``) is in every chance.
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
"""Name of an arm -> seed -> what its training came to."""
_MIN_DEVIATION = 1e-9
"""Trainings that rounding alone tells apart have no spread to speak of."""


@dataclass(frozen=True)
class Contrast:
    """Difference of an arm from the reference, the seeds' own taken out.

    Each row of the two arrays tells what its standard error may be: in the first as the arm may be noisier
    than others, then as the reference may be. What is said is what both allow, for that one of the two
    is so noisy needs no correction for the other.
    """

    difference: float
    errors: np.ndarray
    probabilities: np.ndarray
    """Of each of ``errors``, every row with the sum 1."""

    @property
    def p_above(self) -> float:
        """Chance of a difference as large or larger if there is none."""
        return self._tail_probability(self.difference)

    @property
    def p_below(self) -> float:
        """Chance of a difference as small or smaller if there is none."""
        return self._tail_probability(-self.difference)

    def upper_bound(self, confidence: float) -> float:
        """Upper end of its one-sided interval; *confidence* above 0.5."""
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
    """Contrast of the only arm, by its pairs: Student's t."""
    pairs = np.array([value - reference[seed] for seed, value in arm.items()])
    smallest = _rounding_variance([*arm.values(), *reference.values()])
    own = np.array([max(float(pairs.var(ddof=1)), smallest)])
    found = variance_posterior(own, np.array([len(pairs) - 1.0]))
    return Contrast(float(pairs.mean()), np.sqrt(found.variances / len(pairs))[None], found.probabilities)


@dataclass(frozen=True)
class _SeedBlockFit:
    """Least squares of a level for each arm and one for each seed; the first arm is the reference."""

    arm: np.ndarray
    """Place of the arm of each training."""
    values: np.ndarray
    """What each training came to."""
    level_weights: np.ndarray
    """Weight of each training in the level of each arm, of shape (arms, trainings)."""
    spreads: VariancePosterior

    def contrast(self, arm: int) -> Contrast:
        """Contrast of that arm with the reference."""
        weights = self.level_weights[arm] - self.level_weights[0]
        parts = np.bincount(self.arm, weights**2)
        shares = parts * self.spreads.typical
        sides = [arm, 0]
        rest = np.array([[shares.sum() - shares[side]] for side in sides])
        errors = np.sqrt(rest + parts[sides][:, None] * self.spreads.variances)
        return Contrast(float(weights @ self.values), errors, self.spreads.probabilities[sides])


def _fit(arms: Sequence[Mapping[int, float]]) -> _SeedBlockFit:
    """The effects add up as in ``analysis.rounds``, where each case has an interval of its own.

    Contrasts with one reference share its error and its seeds. That each side may be noisier is held against
    the other's typical spread: if intervals of both allowed for both at once, a case of 23 that takes a
    fifth more steps would be found in a third of suites (500 drawn) instead of in six of ten.
    """
    seeds = sorted(set().union(*arms[1:]))
    cells = [(arm, seed, arms[arm][seed]) for arm in range(len(arms)) for seed in seeds if seed in arms[arm]]
    arm = np.array([place for place, _, _ in cells])
    values = np.array([value for _, _, value in cells])
    design = np.zeros((len(cells), len(arms) + len(seeds)))
    for row, (place, seed, _) in enumerate(cells):
        design[row, [place, len(arms) + seeds.index(seed)]] = 1
    weights = np.ones(len(arms))
    # the second time, what is noisy has little say in what belongs to a seed
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
    """The variance that rounding alone makes of *values*."""
    return (_MIN_DEVIATION * max(1.0, float(np.abs(values).max()))) ** 2
