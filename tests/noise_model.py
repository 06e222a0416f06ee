"""Noise of a training machine, made up: step times of launches of two arms, side by side.

The model and the three levels are those of the reference on regression gates: the logarithm of a
step's time is the offset of the session, a slow drift over some ten launches (Ornstein-Uhlenbeck),
the offset of the launch, and autocorrelated noise of the step; on top come stalls that double a step,
and launches that are bad as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

STEPS = 100
_AUTOCORRELATION = 0.7
_DRIFT_LAUNCHES = 10


@dataclass(frozen=True)
class Noise:
    """Standard deviations of the logarithm, and chances."""

    step: float
    launch: float
    drift: float
    stalls: float
    """Chance that a step takes twice as long."""
    bad: float
    """Chance that a launch is bad as a whole."""
    bad_by: float = 0.2
    """By how much longer the steps of a bad launch take."""


QUIET = Noise(step=0.03, launch=0.01, drift=0.005, stalls=0.005, bad=0.0)
TYPICAL = Noise(step=0.05, launch=0.02, drift=0.01, stalls=0.01, bad=0.01)
NOISY = Noise(step=0.10, launch=0.05, drift=0.02, stalls=0.02, bad=0.03, bad_by=0.3)
LAUNCHES_ONLY = replace(TYPICAL, step=0.0, drift=0.0, stalls=0.0, bad=0.0)


def launches(noise: Noise, series: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return the steps' times of *series* times *count* launches in a row: (series, count, STEPS)."""
    offsets = _drift(noise, series, count, rng) + rng.normal(0, noise.launch, (series, count))
    offsets += np.log1p(noise.bad_by) * (rng.random((series, count)) < noise.bad)
    steps = np.exp(offsets[..., None] + _autocorrelated(noise.step, (series, count), rng))
    return steps * (1 + (rng.random(steps.shape) < noise.stalls))


def pairs(noise: Noise, series: int, count: int, slowdown: float, rng: np.random.Generator) -> np.ndarray:
    """Return log ratios of *count* pairs of mean step times, run A B B A: (series, count)."""
    means = np.log(launches(noise, series, 2 * count, rng).mean(axis=-1)).reshape(series, count, 2)
    return _ratios(means, np.log1p(slowdown))


def efficiency_pairs(
    noise: Noise, series: int, count: int, slowdown: float, rng: np.random.Generator
) -> np.ndarray:
    """Return log ratios of the reciprocal of scaling efficiency, run A1 AN BN B1 | B1 BN AN A1.

    *slowdown* is that of the steps on N devices alone.
    """
    means = np.log(launches(noise, series, 4 * count, rng).mean(axis=-1)).reshape(series, count, 4)
    # of each half block: first arm on one device and on N, then second arm on N and on one
    costs = np.stack([means[..., 1] - means[..., 0], means[..., 2] - means[..., 3]], axis=-1)
    return _ratios(costs, np.log1p(slowdown))


def _ratios(costs: np.ndarray, shift: float) -> np.ndarray:
    """Return second over first arm; the arms change places from pair to pair."""
    first, second = costs[..., 0], costs[..., 1]
    swapped = np.arange(costs.shape[1]) % 2 == 1
    return np.where(swapped, first - second, second - first) + shift


def _drift(noise: Noise, series: int, count: int, rng: np.random.Generator) -> np.ndarray:
    keep = np.exp(-1 / _DRIFT_LAUNCHES)
    return _walk(rng.normal(size=(count, series)), keep, noise.drift).T


def _autocorrelated(scale: float, shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    return np.moveaxis(_walk(rng.normal(size=(STEPS, *shape)), _AUTOCORRELATION, scale), 0, -1)


def _walk(news: np.ndarray, keep: float, scale: float) -> np.ndarray:
    """Return a stationary first-order autoregression along the first axis."""
    found = np.empty_like(news)
    found[0] = news[0]
    for i in range(1, len(news)):
        found[i] = keep * found[i - 1] + np.sqrt(1 - keep**2) * news[i]
    return scale * found
