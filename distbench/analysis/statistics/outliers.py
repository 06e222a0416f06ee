"""Find single points of a series that are far from their neighbours (F. R. Hampel 1974, JASA 69)."""

from __future__ import annotations

from typing import Any

import numpy as np

MIN_DEVIATION = 1e-9
"""Minimum deviation: counted numbers, such as bytes, have no spread, and any step in them is certain."""
_OUTLIER_DEVIATIONS = 4.0
"""Minimum distance of an outlier from its neighbours, in robust standard deviations."""
_NEIGHBORS = 2
"""Neighbours on each side: of five points a lasting level has three, so an outlier has no majority."""
_MEDIAN_TO_DEVIATION = 1 / 0.4895
"""Ratio of the standard deviation of normal values to their median distance from the median of five."""


def hampel_replacements(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Index of each point's replacement: itself, or for an outlier the median of its neighbours."""
    count = len(values)
    places = [range(max(0, i - _NEIGHBORS), min(count, i + _NEIGHBORS + 1)) for i in range(count)]
    # the lower median: an actual value, on either scale
    middles = [sorted(near, key=lambda place: values[place])[(len(near) - 1) // 2] for near in places]
    distances = np.abs(values - values[middles])
    is_outlier = distances > max(
        _OUTLIER_DEVIATIONS * _MEDIAN_TO_DEVIATION * float(np.median(distances)), MIN_DEVIATION
    )
    return np.where(is_outlier, middles, np.arange(count))
