"""Drawn histories without a step, and in how many one is found."""

from __future__ import annotations

import numpy as np

from distbench.analysis.statistics.change_points import find_shifts

LEAST = 0.03


def share_called(histories: np.ndarray) -> float:
    return float(np.mean([bool(find_shifts(list(values), LEAST)) for values in histories]))


def outliers(rng: np.random.Generator) -> np.ndarray:
    """Return histories of which every twentieth day is a fifth slower."""
    values = np.exp(rng.normal(0, 0.024, (400, 100)))
    return np.where(rng.random(values.shape) < 0.05, 0.8 * values, values)


def heavy_tails(rng: np.random.Generator) -> np.ndarray:
    return np.exp(0.024 * rng.standard_t(3, (400, 100)))
