"""Trials of several cases by round: what belongs to the case, what to the round, and what is left.

A run makes one trial of every case in a round, so whatever drifts over its hours moves all cases of a round
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
from distbench.analysis.statistics.quantiles import chi2_quantile
from distbench.analysis.statistics.variance_shrinkage import moderated_variances, variance_posterior

TrialsByRound = Mapping[int, float]
"""Round -> the positive number of its trial."""
SINGULAR = 1e-10
"""Singular values below this share of the largest are 0 but for rounding. A design of cases and rounds always
has one, as all rounds together are all cases together; rounding makes it larger the more trials there are."""
_OUTLIER_DEVIATIONS = 10.0
"""Typical deviations from the median of its case beyond which a trial may be set aside."""
_OUTLIER_RANGE_RATIO = 20.0
"""... if it is that many times as far from it as the other trials are from one another."""


@dataclass(frozen=True)
class BlockFit:
    """Cases with the rounds taken out, each array of shape (cases,)."""

    logs: np.ndarray
    """Logarithm of what a case would show in the average round."""
    errors: np.ndarray
    """Standard errors of ``logs``; NaN if no case has a second trial."""
    degrees_of_freedom: np.ndarray
    """Degrees of freedom behind ``errors``."""
    typical_deviation: float
    """Typical standard deviation of the logarithm of a trial; NaN as ``errors``."""
    autocorrelation: float = 0.0
    """Of the trials of a case from one round to the next, as ``errors`` hold it."""


def fit_blocks(samples: Sequence[TrialsByRound], *, counted: bool = False) -> BlockFit:
    """Fit of cases and rounds to *samples*, by least squares weighted by the cases' own variances.

    A number that is *counted*, such as bytes, owes nothing to the state of the machine: rounds have no
    effect on it, and a trial that differs from the others is as true as they are.

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
    # too few trials to tell rounds from noise: the noise then holds what the rounds did
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
    # part of each round in a case's mean: equal for cases that were in all of them
    shares = np.stack([np.bincount(case, column) / counts for column in in_round.T], axis=1)
    within = in_round - shares[case]
    own: np.ndarray = np.zeros(len(samples))
    freedoms: np.ndarray = np.zeros(len(samples))
    # the second time, what is noisy has little say in what the rounds did
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
    """What is *left* of the trials of each case, in the order of their rounds."""
    ends = np.cumsum([len(trials) for trials in samples])[:-1]
    return [of[np.argsort(list(trials))] for of, trials in zip(np.split(left, ends), samples, strict=True)]


def _weights(variances: np.ndarray, freedoms: np.ndarray) -> np.ndarray:
    """How much each case has to say in what the rounds did: the less the noisier it is."""
    if not np.where(freedoms > 0, variances, 0.0).any():
        return np.ones(len(variances))
    typical = variance_posterior(variances, freedoms).typical
    weights: np.ndarray = np.median(typical) / typical
    return weights


def _shared_rounds(samples: Sequence[TrialsByRound]) -> np.ndarray:
    """Which trial was in which round, shape (trials, rounds); a round of one case alone has no column."""
    rounds = [number for trials in samples for number in trials]
    shared = sorted(number for number in set(rounds) if rounds.count(number) > 1)
    if not shared:
        return _no_rounds(samples)
    return np.array([[number == each for each in shared] for number in rounds], dtype=float)


def _no_rounds(samples: Sequence[TrialsByRound]) -> np.ndarray:
    return np.zeros((sum(map(len, samples)), 1))


def _typical_deviation(samples: Sequence[TrialsByRound]) -> float | None:
    """Deviation of a trial's logarithm in most cases, whatever a disturbed one does; None: no second trials.

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
    """*trials* without one that is far from all others, as far as three or more can show it."""
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
