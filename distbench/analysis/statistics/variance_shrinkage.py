"""Shrink per-case variances toward a common prior.

Three trials of one case say little about their own spread, and those of all cases together do not show which
case is the noisier one. G. K. Smyth (2004), "Linear models and empirical Bayes methods for assessing
differential expression in microarray experiments", Stat. Appl. Genet. Mol. Biol. 3(1), weighs the two: the
moderated t of the R package limma. Its unimodal prior of variances makes a case that is far noisier than all
others look too certain. Here the variances are a mixture, as in M. Lu and M. Stephens (2016), "Variance
adaptive shrinkage (vash)", Bioinformatics 32(22): most cases share one variance, and some have a larger one.

The model, with flat priors on a grid: a case has the common variance, or with a probability estimated from
all cases (``_NOISY_SHARES``) a larger one. The prior of its deviation is flat in the logarithm up to five
times the common one, and beyond falls as one over the deviation. An unbiased estimate with d degrees of
freedom is its case's variance times chi-squared over d.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy

# a variance of 0, of trials that agree by chance or are counted, has no logarithm (as in limma)
_MIN_VARIANCE_RATIO = 1e-5
_EQUALITY_TOLERANCE = 1e-9
"""Maximum relative difference of variances that are equal up to rounding."""
_GRID_STEP = 0.25
"""Step of the grid, in logarithms of variances: an eighth of a standard deviation."""
_GRID_BELOW, _GRID_ABOVE = 6.0, 14.0
"""Extent of the grid beyond the estimates, in logarithms: far up, as few trials exclude little."""
_NOISY_SHARES = np.array([0.03, 0.1, 0.2])
"""Possible shares of noisier cases."""
_FLAT_PRIOR_RATIO = 5.0
"""Ratio to the common deviation up to which the prior is flat; beyond, it falls as one over the ratio."""
_MATCHED_TAILS = 0.025, 0.001
"""Tail probabilities at which Student's t matches the mixture: the ends of a 95% interval, and those for many
comparisons."""
_DEGREES_OF_FREEDOM_GRID = np.geomspace(1.0, 1000.0, 200)


@dataclass(frozen=True)
class VariancePosterior:
    """Posterior of the variances of cases, for normal noise whose variance is a mixture."""

    variances: np.ndarray
    """Shape (grid,)."""
    probabilities: np.ndarray
    """Probability of each variance for each case, shape (cases, grid)."""

    @property
    def typical(self) -> np.ndarray:
        """Geometric mean of each case's variance, shape (cases,)."""
        typical: np.ndarray = np.exp(self.probabilities @ np.log(self.variances))
        return typical


def variance_posterior(variances: np.ndarray, degrees_of_freedom: np.ndarray) -> VariancePosterior:
    """Posterior of the variances of cases.

    Args:
        variances: unbiased estimates, shape (cases,), not all 0; ignored where ``degrees_of_freedom`` is 0.
        degrees_of_freedom: their degrees of freedom, shape (cases,), at least one above 0; may be fractions.
    """
    known = degrees_of_freedom > 0
    own = np.where(known, variances, 0.0)
    own = np.maximum(own, _MIN_VARIANCE_RATIO * np.median(own[own > 0]))
    logs = np.arange(
        np.log(own[known].min()) - _GRID_BELOW, np.log(own[known].max()) + _GRID_ABOVE, _GRID_STEP
    )
    weighed = -0.5 * degrees_of_freedom[:, None] * (logs + own[:, None] * np.exp(-logs))
    likely = np.exp(weighed - weighed.max(axis=1, keepdims=True))
    noisier = _noisier_prior(len(logs))
    # likelihood of each case for each common variance, shape (shares, cases, grid)
    shares = _NOISY_SHARES[:, None, None]
    of_common = (1 - shares) * likely + shares * (likely @ noisier.T)
    # a case whose likelihood is below the smallest normal number excludes that common variance
    of_common = np.maximum(of_common, np.finfo(float).tiny)
    common = np.log(of_common).sum(axis=1)
    common = np.exp(common - common.max())
    common /= common.sum()
    each = common[:, None, :] / of_common
    chances = likely * (((1 - shares) * each).sum(axis=0) + (shares * each).sum(axis=0) @ noisier)
    return VariancePosterior(np.exp(logs), chances / chances.sum(axis=1, keepdims=True))


def moderated_variances(
    variances: np.ndarray, degrees_of_freedom: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Variances for use with Student's t, and the degrees of freedom behind each.

    The mean of a case has the tails of its ``variance_posterior`` at both of ``_MATCHED_TAILS``.

    Args:
        variances: unbiased estimates, shape (cases,); ignored where ``degrees_of_freedom`` is 0.
        degrees_of_freedom: their degrees of freedom, shape (cases,), at least one above 0; may be fractions.
    """
    known = degrees_of_freedom > 0
    own = variances[known]
    # one case, or two of the same rounds, whose residuals mirror each other: which is noisier is unknown
    if np.ptp(own) <= _EQUALITY_TOLERANCE * own.max():
        common = np.average(own, weights=degrees_of_freedom[known])
        return np.full(len(known), common), np.full(len(known), degrees_of_freedom.sum())
    found = variance_posterior(variances, degrees_of_freedom)
    deviations = np.sqrt(found.variances)
    near, far = (mixture_quantiles(deviations, found.probabilities, tail) for tail in _MATCHED_TAILS)
    theirs = scipy.special.stdtrit(_DEGREES_OF_FREEDOM_GRID, 1 - np.array(_MATCHED_TAILS)[:, None])
    # tails get lighter with the degrees of freedom, and interpolation needs an increasing sequence
    behind = np.interp(-far / near, -theirs[1] / theirs[0], _DEGREES_OF_FREEDOM_GRID)
    behind = np.minimum(behind, degrees_of_freedom.sum())
    return (near / scipy.special.stdtrit(behind, 1 - _MATCHED_TAILS[0])) ** 2, behind


def mixture_quantiles(deviations: np.ndarray, probabilities: np.ndarray, tail: float) -> np.ndarray:
    """Upper *tail* quantiles of normal noise whose deviation is a mixture.

    Args:
        deviations: above 0, of shape (grid,) or (cases, grid).
        probabilities: of each deviation, shape (cases, grid).
        tail: below 0.5.
    """
    reach = -scipy.special.ndtri(tail)
    low = reach * np.broadcast_to(deviations, probabilities.shape).min(axis=1)
    high = reach * np.broadcast_to(deviations, probabilities.shape).max(axis=1)
    # accurate to one part in 100,000
    for _ in range(24):
        middle = np.sqrt(low * high)
        beyond = (probabilities * scipy.special.ndtr(-middle[:, None] / deviations)).sum(axis=1) > tail
        low, high = np.where(beyond, middle, low), np.where(beyond, high, middle)
    value: np.ndarray = np.sqrt(low * high)
    return value


def _noisier_prior(size: int) -> np.ndarray:
    """Prior of a noisier case's variance given the common one, shape (common, grid)."""
    beyond = (np.arange(size) - np.arange(size)[:, None]) * _GRID_STEP
    chances = np.where(beyond < 0, 0.0, np.minimum(1.0, _FLAT_PRIOR_RATIO * np.exp(-beyond / 2)))
    each: np.ndarray = chances / chances.sum(axis=1, keepdims=True)
    return each
