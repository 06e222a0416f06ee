"""Thousands of series of a gate at once: where each ends, and what it says there.

The same as ``paired.has_ended`` and ``paired.look`` for each series alone, which a test compares.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distbench.analysis.statistics.distributions import t_quantile
from distbench.gate.sequential_test import EARLY_STOP_CONFIDENCE, LOOK_SCHEDULE, Estimator, PairRule


@dataclass(frozen=True)
class Ended:
    """How series ended."""

    words: np.ndarray
    pairs: np.ndarray

    def share(self, word: str) -> float:
        """Share of the series with that word."""
        return float(np.mean(self.words == word))


@dataclass(frozen=True)
class Looks:
    """Every look at every series: (series, pairs)."""

    words: np.ndarray
    ends: np.ndarray
    """Whether the series would end here."""


def looks(series: np.ndarray, rule: PairRule) -> Looks:
    """Looks at *series*, (series, pairs) of log ratios, after each of their pairs."""
    counts = np.arange(1, rule.max_pairs + 1)
    means, errors = np.zeros((2, len(series), rule.max_pairs))
    # a single pair has no spread
    errors[:, 0] = np.inf
    means[:, 0] = series[:, 0]
    for count in counts[1:].tolist():
        means[:, count - 1], errors[:, count - 1] = _mean(series[:, :count], rule.estimator)
    half, sure = (
        errors
        * [t_quantile((1 + level) / 2, max(rule.estimator.degrees_of_freedom(n), 1)) for n in counts.tolist()]
        for level in (rule.estimator.confidence, EARLY_STOP_CONFIDENCE)
    )
    words = np.where(half <= rule.limit, "pass", "inconclusive").astype("<U12")
    words[(means - half > 0) & (means >= rule.limit)] = "regressed"
    words[(means + half < 0) & (means <= -rule.limit)] = "improved"
    is_look = (counts == rule.min_pairs) | ((counts > rule.min_pairs) & np.isin(counts, LOOK_SCHEDULE))
    enough = (half <= rule.limit) | (np.abs(means) >= np.maximum(rule.limit, sure))
    return Looks(words, (counts >= rule.max_pairs) | (is_look & enough))


def _mean(pairs: np.ndarray, by: Estimator) -> tuple[np.ndarray, np.ndarray]:
    """Mean of each row of *pairs* and its standard error."""
    count = pairs.shape[1]
    cut = (count - by.degrees_of_freedom(count)) // 2
    ordered = np.sort(pairs, axis=1)
    kept = ordered[:, cut : count - cut]
    winsorised = np.clip(ordered, kept[:, :1], kept[:, -1:])
    squares = winsorised.var(axis=1) * count
    return kept.mean(axis=1), np.sqrt(squares / (kept.shape[1] * (kept.shape[1] - 1)))


def ended(series: np.ndarray, rule: PairRule) -> Ended:
    """How each of *series* ends."""
    seen = looks(series, rule)
    return _at(seen.words, seen.ends)


def efficiency_alone(blocks: np.ndarray, rule: PairRule) -> Ended:
    """How the efficiency of *blocks*, (series, pairs, one or N devices), ends where it alone is gated.

    It ends with its own interval, or with a throughput that lost nothing; a lower one counts only if the
    throughput on all devices lost something, too.
    """
    pace, cost = looks(blocks[..., 1], rule), looks(blocks[..., 1] - blocks[..., 0], rule)
    words = np.where(np.isin(cost.words, ("regressed", "inconclusive")), "pass", cost.words)
    words[pace.words == "regressed"] = cost.words[pace.words == "regressed"]
    words[(pace.words == "inconclusive") & np.isin(cost.words, ("regressed", "inconclusive"))] = (
        "inconclusive"
    )
    return _at(words, cost.ends | (pace.ends & np.isin(pace.words, ("pass", "improved"))))


def _at(words: np.ndarray, ends: np.ndarray) -> Ended:
    first = ends.argmax(axis=1)
    return Ended(words[np.arange(len(words)), first], first + 1)
