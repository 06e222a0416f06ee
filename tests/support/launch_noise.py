"""Noise of a training machine, made up: step times of launches of two arms, side by side.

The model and the three levels are those of the reference on regression gates: the logarithm of a
step's time is the offset of the session, a slow drift over some ten launches (Ornstein-Uhlenbeck),
the offset of the launch, and autocorrelated noise of the step; on top come stalls that double a step,
and launches that are bad as a whole. The session's offset is in both arms, and left out.
"""

from __future__ import annotations

from collections.abc import Callable
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


def launches(
    noise: Noise, shape: tuple[int, ...], rng: np.random.Generator, stalls: np.ndarray | float | None = None
) -> np.ndarray:
    """Return the steps' times of launches: (series, ..., STEPS), those of a series in order of time.

    *stalls* stands in place of the noise's own where launches differ in it.
    """
    series, count = shape[0], int(np.prod(shape[1:]))
    offsets = _walk(rng.normal(size=(count, series)), np.exp(-1 / _DRIFT_LAUNCHES), noise.drift).T
    offsets = offsets + rng.normal(0, noise.launch, (series, count))
    offsets += np.log1p(noise.bad_by) * (rng.random(offsets.shape) < noise.bad)
    of_steps = _walk(_each_step(rng.standard_normal, shape), _AUTOCORRELATION, noise.step)
    times = np.exp(of_steps + offsets.reshape(shape).astype(np.float32))
    stalled = np.moveaxis(_each_step(rng.random, shape), 0, -1) < (noise.stalls if stalls is None else stalls)
    return np.moveaxis(times, 0, -1) * np.where(stalled, np.float32(2), np.float32(1))


def by_arm(found: np.ndarray) -> np.ndarray:
    """Return what was found in order of time, A B | B A | A B, as A B | A B | A B.

    The axes are series, pair, launch of the pair, and any further.
    """
    found = found.copy()
    found[:, 1::2] = found[:, 1::2, ::-1]
    return found


def blocks(noise: Noise, series: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return log ratios of mean step times of *count* blocks A1 AN BN B1 | B1 BN AN A1, nothing changed.

    The axes are series, block, and one device or N devices.
    """
    means = np.log(launches(noise, (series, count, 2, 2), rng).mean(axis=-1))
    # the arm that begins goes up through the world sizes, the other comes back down
    means[:, :, 1] = means[:, :, 1, ::-1]
    of_arms = by_arm(means)
    return of_arms[:, :, 1] - of_arms[:, :, 0]


def _each_step(draw: Callable[..., np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    # single precision: a tenth of a millionth of a step, and half of the time of a simulation
    return draw((STEPS, *shape), dtype=np.float32)


def _walk(news: np.ndarray, keep: float, scale: float) -> np.ndarray:
    """Return a stationary first-order autoregression along the first axis, of standard deviation *scale*."""
    found = scale * news
    for i in range(1, len(found)):
        found[i] = keep * found[i - 1] + (1 - keep**2) ** 0.5 * found[i]
    return found
