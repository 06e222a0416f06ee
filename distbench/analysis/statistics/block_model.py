"""Decompose trials of several cases by round into effects of case and round, and noise.

A run makes one trial of every case in a round, so any drift over its hours affects all cases of a round
alike: rounds are the blocks of a randomised block design (D. C. Montgomery, "Design and Analysis of
Experiments", chapter 4). The logarithm of a trial is an effect of its case, one of its round, and noise
whose variance is the case's own. Intervals rest on the noise alone.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from distbench.analysis.statistics.autocorrelation import autocorrelation, error_inflation
from distbench.analysis.statistics.distributions import chi2_quantile
from distbench.analysis.statistics.variance_shrinkage import moderated_variances, variance_posterior

TrialsByRound = Mapping[int, float]
"""Round -> the positive number of its trial."""
SINGULAR = 1e-10
"""Singular values below this share of the largest are 0 up to rounding. A design of cases and rounds always
has one, as the sum of all rounds is the sum of all cases; rounding makes it larger with more trials."""
_OUTLIER_DEVIATIONS = 10.0
"""Minimum distance of an outlier from its case's median, in typical deviations."""
_OUTLIER_RANGE_RATIO = 20.0
"""Minimum ratio of that distance to the range of the case's other trials; both limits must be exceeded."""


@dataclass(frozen=True)
class BlockFit:
    """Effects of the cases after removing the rounds, each array of shape (cases,)."""

    logs: np.ndarray
    """Logarithm of a case's value in the average round."""
    errors: np.ndarray
    """Standard errors of ``logs``; NaN if no case has a second trial."""
    degrees_of_freedom: np.ndarray
    """Degrees of freedom behind ``errors``."""
    typical_deviation: float
    """Typical standard deviation of the logarithm of a trial; NaN like ``errors``."""
    autocorrelation: float = 0.0
    """Autocorrelation of a case's trials from one round to the next, as included in ``errors``."""


def fit_blocks(samples: Sequence[TrialsByRound], *, counted: bool = False) -> BlockFit:
    """Fit cases and rounds to *samples*, by least squares weighted by the cases' own variances.

    A *counted* number, such as bytes, does not depend on the state of the machine: rounds have no
    effect on it, and no trial is an outlier.

    Raises:
        ValueError: a case has no trial, or a number that is not positive.
    """
    if not samples:
        nothing = np.zeros(0)
        return BlockFit(nothing, nothing, nothing, math.nan)
    if not all(samples) or min((min(trials.values()) for trials in samples), default=1.0) <= 0:
        raise ValueError("every case needs at least one trial, and every number must be above 0")
    if counted:
        return _fit(samples, _no_rounds(samples))
    typical = _typical_deviation(samples)
    kept = [_without_outlier(trials, typical) for trials in samples]
    blocked = _fit(kept, _shared_rounds(kept))
    # too few trials to separate rounds from noise: the noise then includes the effects of the rounds
    return blocked if blocked.degrees_of_freedom.any() else _fit(kept, _no_rounds(kept))


def outlier_rounds(samples: Sequence[TrialsByRound]) -> list[list[int]]:
    """Rounds of each case whose trial is so far from the case's others that it is left out of the fit."""
    typical = _typical_deviation(samples)
    return [sorted(set(trials) - set(_without_outlier(trials, typical))) for trials in samples]


def _fit(samples: Sequence[TrialsByRound], in_round: np.ndarray) -> BlockFit:
    """Least squares on the indicators *in_round*, shape (trials, rounds), within the cases."""
    case = np.repeat(np.arange(len(samples)), [len(trials) for trials in samples])
    logs = np.log([number for trials in samples for number in trials.values()])
    counts = np.bincount(case)
    means = np.bincount(case, logs) / counts
    # share of each round in a case's mean: equal for cases that were in all of them
    shares = np.stack([np.bincount(case, column) / counts for column in in_round.T], axis=1)
    within = in_round - shares[case]
    own: np.ndarray = np.zeros(len(samples))
    freedoms: np.ndarray = np.zeros(len(samples))
    # in the second pass, noisy cases have little weight in the effects of the rounds
    for _ in range(2):
        weights = _weights(own, freedoms)
        root = np.sqrt(weights)[case]
        inverse = np.linalg.pinv(within * root[:, None], rcond=SINGULAR)
        moved = inverse @ (root * (logs - means[case]))
        left = logs - means[case] - within @ moved
        leverage = ((within * root[:, None]) * inverse.T).sum(axis=1)
        freedoms = counts - 1.0 - np.bincount(case, leverage)
        freedoms[freedoms < 1e-9] = 0.0
        own = np.bincount(case, left**2) / np.where(freedoms > 0, freedoms, 1.0)
    if not freedoms.any():
        unknown = np.full(len(samples), np.nan)
        return BlockFit(means, unknown, freedoms, np.nan)
    variances, behind = moderated_variances(own, freedoms)
    middle = float(np.median(variances))
    of_rounds = middle * ((shares @ inverse) ** 2).sum(axis=1)
    errors = np.sqrt(variances / counts + of_rounds)
    rounds = [tuple(sorted(trials)) for trials in samples]
    units = np.sqrt(np.where(variances > 0, variances, 1.0))
    rho = autocorrelation(_in_order(left / units[case], samples), rounds, float(freedoms.sum()))
    widened = errors * [error_inflation(rho, of) for of in rounds]
    return BlockFit(means - shares @ moved, widened, behind, middle**0.5, rho)


def _in_order(left: np.ndarray, samples: Sequence[TrialsByRound]) -> list[np.ndarray]:
    """Residuals *left* of the trials of each case, in the order of their rounds."""
    ends = np.cumsum([len(trials) for trials in samples])[:-1]
    return [of[np.argsort(list(trials))] for of, trials in zip(np.split(left, ends), samples, strict=True)]


def _weights(variances: np.ndarray, freedoms: np.ndarray) -> np.ndarray:
    """Weight of each case in the estimates of the rounds: the noisier, the lower."""
    if not np.where(freedoms > 0, variances, 0.0).any():
        return np.ones(len(variances))
    typical = variance_posterior(variances, freedoms).typical
    weights: np.ndarray = np.median(typical) / typical
    return weights


def _shared_rounds(samples: Sequence[TrialsByRound]) -> np.ndarray:
    """Indicators of each trial's round, shape (trials, rounds), only for rounds of several cases."""
    rounds = [number for trials in samples for number in trials]
    shared = sorted(number for number in set(rounds) if rounds.count(number) > 1)
    if not shared:
        return _no_rounds(samples)
    return np.array([[number == each for each in shared] for number in rounds], dtype=float)


def _no_rounds(samples: Sequence[TrialsByRound]) -> np.ndarray:
    return np.zeros((sum(map(len, samples)), 1))


def _typical_deviation(samples: Sequence[TrialsByRound]) -> float | None:
    """Robust standard deviation of a trial's logarithm; None without second trials.

    The median over cases of the standard deviation, each divided by the median of its own distribution
    (chi with n - 1 degrees of freedom).
    """
    deviations = [
        statistics.stdev(map(math.log, trials.values()))
        / math.sqrt(chi2_quantile(0.5, len(trials) - 1) / (len(trials) - 1))
        for trials in samples
        if len(trials) > 1
    ]
    return statistics.median(deviations) if deviations else None


def _without_outlier(trials: TrialsByRound, typical: float | None) -> TrialsByRound:
    """*trials* without an outlier, which needs at least three trials to show."""
    if len(trials) < 3 or typical is None:
        return trials
    logs = {number: math.log(value) for number, value in trials.items()}
    middle = statistics.median(logs.values())
    far = max(logs, key=lambda number: abs(logs[number] - middle))
    others = [log for number, log in logs.items() if number != far]
    limit = max(_OUTLIER_DEVIATIONS * typical, _OUTLIER_RANGE_RATIO * (max(others) - min(others)))
    if abs(logs[far] - middle) <= limit:
        return trials
    return {number: value for number, value in trials.items() if number != far}
