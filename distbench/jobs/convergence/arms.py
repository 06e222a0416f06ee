"""Trainings of several arms from the same seeds: how each differs from the reference, and how sure that is.

A seed decides the weights and the batches of every arm alike, so part of what a training comes to
belongs to its seed. Arms and seeds are taken to add up (the randomised blocks of Fisher, The Design of
Experiments, 1935): what both leave is the noise of one training, which all arms together tell
far better than the few trainings of one. An arm that scatters clearly more than the others is
compared by its own pairs alone, so that it neither hides behind their noise nor drowns them in its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from distbench.analysis.quantiles import t_quantile

Arms = Mapping[str, Mapping[int, float]]
"""Name of an arm -> seed -> what its training came to."""
_SCATTERS_P = 0.01
_SMALLEST_DEVIATION = 1e-9
"""Trainings that rounding alone tells apart have no spread to speak of."""


@dataclass(frozen=True)
class Contrast:
    """Difference of an arm from the reference, the seeds' own taken out."""

    difference: float
    error: float
    """Its standard error."""
    freedom: int
    """Degrees of freedom behind the error."""

    @property
    def p_above(self) -> float:
        """Chance of a difference as large or larger if there is none (Student's t)."""
        return float(special.stdtr(self.freedom, -self.difference / self.error))

    def most(self, confidence: float) -> float:
        """Upper end of its one-sided interval."""
        return self.difference + t_quantile(confidence, self.freedom) * self.error


def contrasts(arms: Arms, reference: Mapping[int, float]) -> dict[str, Contrast]:
    """Contrast of each of *arms* that has at least two seeds in common with the *reference*."""
    shared = {
        name: {seed: value for seed, value in arm.items() if seed in reference} for name, arm in arms.items()
    }
    together = {name: arm for name, arm in shared.items() if len(arm) > 1}
    found: dict[str, Contrast] = {}
    while len(together) > 1:
        fit = _Fit([reference, *together.values()])
        noisiest = fit.noisiest()
        if noisiest is None:
            return found | {name: fit.contrast(place) for place, name in enumerate(together, 1)}
        if noisiest == 0:
            break
        name = [*together][noisiest - 1]
        found[name] = _Fit([reference, together.pop(name)]).contrast(1)
    return found | {name: _Fit([reference, arm]).contrast(1) for name, arm in together.items()}


class _Fit:
    """Least squares of a level for each arm and one for each seed; the first arm is the reference.

    The effects add up as in ``analysis.rounds``, but the question is another one. There each case has a
    variance of its own, shrunk toward the others', and an interval of its own, as if independent of the rest.
    Contrasts with one reference share its error and its seeds, and the noise of all arms. Of 1,000 suites of
    23 honest cases (those of ``tests/test_convergence.py``) either calls a case worse in less than 5%, but
    one that takes a fifth more steps is found in 75% by contrasts and in 30% by such intervals (in 100% and
    84% if the same seeds correlate by 0.7).
    """

    def __init__(self, arms: Sequence[Mapping[int, float]]) -> None:
        seeds = sorted(set().union(*arms[1:]))
        cells = [
            (arm, seed, arms[arm][seed]) for arm in range(len(arms)) for seed in seeds if seed in arms[arm]
        ]
        self._arm = np.array([arm for arm, _, _ in cells])
        values = np.array([value for _, _, value in cells])
        design = np.zeros((len(cells), len(arms) + len(seeds)))
        for row, (arm, seed, _) in enumerate(cells):
            design[row, [arm, len(arms) + seeds.index(seed)]] = 1
        self._covariance: np.ndarray[Any, Any] = np.linalg.pinv(design.T @ design)
        self._levels = self._covariance @ design.T @ values
        hat = design @ self._covariance @ design.T
        rest = values - design @ self._levels
        self._squares = np.bincount(self._arm, rest**2)
        self._freedom = np.bincount(self._arm, 1 - np.diag(hat))
        self._smallest = _SMALLEST_DEVIATION * max(1.0, float(np.abs(values).max()))

    def contrast(self, arm: int) -> Contrast:
        """Contrast of that arm with the reference."""
        freedom = round(float(self._freedom.sum()))
        deviation = max(math.sqrt(self._squares.sum() / freedom), self._smallest)
        weights = np.zeros(len(self._levels))
        weights[[0, arm]] = -1, 1
        error = deviation * math.sqrt(weights @ self._covariance @ weights)
        return Contrast(float(self._levels[arm] - self._levels[0]), error, freedom)

    def noisiest(self) -> int | None:
        """The arm that scatters more than all others together beyond chance, if one does."""
        if len(self._squares) < 3:
            return None
        squares, freedom = self._squares.sum() - self._squares, self._freedom.sum() - self._freedom
        floor = self._smallest**2
        ratios = (self._squares / self._freedom + floor) / (squares / freedom + floor)
        worst = int(np.argmax(ratios))
        chance = special.fdtrc(self._freedom[worst], freedom[worst], ratios[worst])
        return worst if chance * len(ratios) < _SCATTERS_P else None
