"""Compare the losses of two arms step by step with bounds from rounding and trial variance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from distbench.analysis.losses.rounding_bounds import (
    BETWEEN_ARMS,
    INSENSITIVE_LIMIT,
    OBSERVED_SPREAD_FACTOR,
    add_loss_resolution,
)
from distbench.analysis.statistics.distributions import t_quantile
from distbench.record import Record

STEP_ERROR_RATE = 1e-3
"""Chance that the spread of trials alone makes any step of an equal training look different."""


@dataclass(frozen=True)
class LossGap:
    """The first step at which the losses of two arms differ by more than a bound."""

    step: int
    """From 1 on, warm-up included."""
    before: float
    """Mean loss over the baseline's trials."""
    after: float
    difference: float
    """Difference of the two, as a fraction of the largest loss so far."""
    explained_difference: float
    """Largest distance that rounding and the spread of trials explain; infinite if unknown."""


@dataclass(frozen=True, eq=False)
class LossDivergence:
    """Mean losses of two arms by step (steps,); distances are fractions of the largest loss so far."""

    before: np.ndarray
    after: np.ndarray
    difference: np.ndarray
    single_step_bound: np.ndarray
    """Distance that the spread of trials and the rounding of a single step explain."""
    expected_bound: np.ndarray
    """The same with the usual amplification of rounding by training."""
    explained_bound: np.ndarray
    """The same with the amplification measured for this training; if not measured, the usual one."""
    spread_bound: np.ndarray
    """Distance that the spread of trials alone explains."""

    @property
    def first_doubtful(self) -> LossGap | None:
        """The first step with a larger distance than rounding in that step alone explains."""
        return self._first(self._beyond(self.single_step_bound))

    @property
    def first_unexpected(self) -> LossGap | None:
        """The first step with a larger distance than usual."""
        return self._first(self._beyond(self.expected_bound))

    @property
    def first_unexplained(self) -> LossGap | None:
        """The first step with a larger distance than is explained."""
        return self._first(self._beyond(self.explained_bound))

    @property
    def first_undecidable(self) -> LossGap | None:
        """The first step with a larger distance than usual where the bound is too wide to decide."""
        return self._first(self._beyond(self.expected_bound) & (self.explained_bound > INSENSITIVE_LIMIT))

    def _beyond(self, limits: np.ndarray) -> np.ndarray:
        # NaN is within no limit
        return np.asarray((self.difference > self.spread_bound) & ~(self.difference <= limits))

    def _first(self, chosen: np.ndarray) -> LossGap | None:
        for at in np.flatnonzero(chosen):
            numbers = (self.before[at], self.after[at], self.difference[at], self.explained_bound[at])
            return LossGap(int(at) + 1, *map(float, numbers))
        return None


def loss_divergence(
    before: np.ndarray,
    after: np.ndarray,
    dtype: str,
    records: Sequence[Record] = (),
    seen: np.ndarray | None = None,
) -> LossDivergence:
    """Compare the losses *before* and *after* step by step.

    Args:
        before: Losses of the baseline's trials, (trials, steps).
        after: Those of the candidate's.
        dtype: Coarsest compute dtype: a key of ``dtypes.DTYPE_BYTES``, or tf32.
        records: The trials, which state in which dtype the model gave its losses; by default in fp32.
        seen: Measured effect of rounding on the baseline up to each step (steps,), in the unit of the
            loss; None: not measured.
    """
    steps = min(before.shape[1], after.shape[1])
    before, after = before[:, :steps], after[:, :steps]
    means = before.mean(axis=0), after.mean(axis=0)
    sizes = np.maximum(*map(np.abs, means))
    # a loss that has come close to 0 is still a sum of terms of its former size
    scales = np.maximum.accumulate(sizes)
    numbers = np.arange(steps)
    rounding, first = (
        add_loss_resolution(BETWEEN_ARMS.limits(dtype, grown) * scales, sizes, records)
        for grown in (numbers, 0 * numbers)
    )
    # without measurements up to a step, nothing is explained there
    here = np.full(steps, np.nan) if seen is None else np.append(seen, np.full(steps, np.nan))[:steps]
    amplified = np.where(np.isnan(here), rounding, first + OBSERVED_SPREAD_FACTOR * here)
    spread = _spread_halfwidth(before, after)
    with np.errstate(divide="ignore", invalid="ignore"):
        return LossDivergence(
            *means,
            difference=np.abs(means[1] - means[0]) / scales,
            single_step_bound=(first + spread) / scales,
            expected_bound=(rounding + spread) / scales,
            explained_bound=(amplified + spread) / scales,
            spread_bound=spread / scales,
        )


def _spread_halfwidth(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Half of the interval of the difference of two means, by step; 0 where an arm has a single trial."""
    if min(len(before), len(after)) < 2:
        return np.zeros(before.shape[1])
    variances = [losses.var(axis=0, ddof=1) / len(losses) for losses in (before, after)]
    # the smaller degrees of freedom of the two, which is the safe side of Welch's
    freedom = min(len(before), len(after)) - 1
    quantile = t_quantile(1 - STEP_ERROR_RATE / 2 / before.shape[1], freedom)
    explained: np.ndarray = quantile * np.sqrt(variances[0] + variances[1])
    return explained
