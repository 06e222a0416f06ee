"""Norms of gradients and updates, which reveal mistakes hidden by 16-bit rounding.

A distance counts errors in all directions alike, and in 16 bits rounding alone makes a tenth of a
gradient's length. But its direction is random: of an error of length ``e`` about ``e / sqrt(n)`` lies along
a gradient of ``n`` elements and changes its length, and less in a mean over tensors or steps. An error that
loses, doubles or scales a gradient lies along it completely.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from distbench.core.grouping import group_by
from distbench.jobs.equivalence.values import Quantity, RecordedTraining

# a size that hardly varies over few trainings does so by chance: no variance counts as less than this
# quantile of the variances in its mean
_MIN_VARIANCE_QUANTILE = 0.25
_EPS32 = float(np.finfo(np.float32).eps)
_SIZE_FAMILIES = {"gradient": ("gradient_size", "all gradients"), "parameter": ("update_size", "all updates")}
"""Family of a tensor -> family of its size, and the name of the mean over all tensors of a step."""


class RelativeSizes:
    """Sizes of trainings, relative to those of one reference."""

    def __init__(self, reference: RecordedTraining, perturbed: Sequence[RecordedTraining]) -> None:
        """Weight each size by its rounding, estimated from *perturbed* trainings of the reference."""
        self._last = reference.last_step
        self._reference = {place: size for place, size in _sizes(reference) if size > 0}
        self._weights = self._mean_weights([self._relative_differences(training) for training in perturbed])

    def with_sizes(self, training: RecordedTraining) -> RecordedTraining:
        """Return *training* with its relative sizes, which are 1 if they equal those of the reference.

        Of each tensor, ``gradient_size`` and ``update_size``; and as ``mean_size`` their means over the
        tensors of a step, and that of the gradient norm over all steps. The weights of a mean are the
        inverse variances of its terms by rounding.
        """
        differences = self._relative_differences(training)
        values = {
            Quantity(place.step, _SIZE_FAMILIES[place.family][0], place.tensor): np.array([1 + each])
            for place, each in differences.items()
            if place.family in _SIZE_FAMILIES
        }
        for mean, places in group_by(self._weights, self._mean_of).items():
            weights = np.array([self._weights[place] for place in places])
            # a missing tensor has no size, and neither has its mean
            each = np.array([differences.get(place, np.nan) for place in places])
            values[mean] = np.array([1 + weights @ each / weights.sum()])
        return dataclasses.replace(training, values={**training.values, **values})

    def _relative_differences(self, training: RecordedTraining) -> dict[Quantity, float]:
        """Relative difference of each size of *training*."""
        sizes = dict(_sizes(training))
        return {place: sizes[place] / size - 1 for place, size in self._reference.items() if place in sizes}

    def _mean_weights(self, differences: Sequence[dict[Quantity, float]]) -> dict[Quantity, float]:
        weights: dict[Quantity, float] = {}
        for places in group_by(self._reference, self._mean_of).values():
            errors = np.array([[each.get(place, np.inf) for place in places] for each in differences])
            squares = np.mean(np.nan_to_num(errors, nan=np.inf) ** 2, axis=0)
            least = max(float(np.quantile(squares, _MIN_VARIANCE_QUANTILE)), _EPS32**2)
            weights |= dict(zip(places, 1 / np.maximum(squares, least), strict=True))
        return weights

    def _mean_of(self, place: Quantity) -> Quantity:
        """Mean that includes the size at *place*."""
        if place.family == "grad_norm":
            return Quantity(self._last, "mean_size", "the gradient norm")
        return Quantity(place.step, "mean_size", _SIZE_FAMILIES[place.family][1])


def _sizes(training: RecordedTraining) -> Iterator[tuple[Quantity, float]]:
    yield from training.sizes.items()
    for place, value in training.values.items():
        if place.family == "grad_norm":
            yield place, float(value[0])
