"""Rounding envelope: how far two trainings may differ by rounding alone.

The reference is trained several times with rounding-sized perturbations. Their distances from it
are the scale of each quantity: a loss, a gradient norm, a gradient, a parameter, each at its step.
A case's ratio is its largest distance over that scale; the ratios of the reference's own perturbed
trainings, each against the others, show how large a ratio rounding makes.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from distbench.analysis.statistics.distributions import chi2_quantile, t_quantile
from distbench.core.grouping import group_by
from distbench.jobs.equivalence.values import QUANTITY_NAMES, Quantity, RecordedTraining

MAX_LIMIT = 50.0
"""Largest limit, as a multiple of the distance of rounding: a looser one could not detect a difference."""

_EPS32 = float(np.finfo(np.float32).eps)
EPSILON = {"bf16": 2.0**-7, "fp16": 2.0**-10}
"""Distance from 1 to the next number in each 16-bit dtype."""
# a family's own variance has weight 1, the typical variance of all families weight 6
_PRIOR_WEIGHT = 6.0
_TYPICAL_QUANTILE = 0.75
# a correct framework may round several times more often than the reference: twice the distance allows
# four times as often
_MARGIN = 2.0
_MAX_DISTANCE = 1e150


@dataclass(frozen=True)
class DetectionLimit:
    """Smallest relative error of one family that would have been outside the envelope.

    Of each tensor at its best step: an error that lasts is detected there.
    """

    family: str
    typical: float
    """Limit of the median tensor."""
    coarsest: float
    """Limit of the tensor in which the largest error can hide."""
    tensor: str
    """Name of that tensor."""


class RoundingEnvelope:
    """Rounding envelope of one reference: scales and limits of every quantity."""

    max_limit: ClassVar[float] = MAX_LIMIT

    def __init__(
        self,
        reference: RecordedTraining,
        perturbed: Sequence[RecordedTraining],
        parameters: int,
        compute: str = "fp32",
        exact: RecordedTraining | None = None,
    ) -> None:
        """Build the envelope of *reference* from its *perturbed* trainings.

        Args:
            parameters: Number of elements of the model.
            compute: Dtype that it is computed in.
            exact: The same training in fp64; None: there is none, or rounding to *compute* does not measure
                rounding, as in 16 bits, where every correct training rounds the same weights alike.
        """
        self.reference = reference
        self._parameters, self._compute = parameters, compute
        self._places = sorted(reference.values, key=lambda place: place.order)
        self._families = [
            family for family in QUANTITY_NAMES if any(p.family == family for p in self._places)
        ]
        self._sizes = np.array([reference.size(place) for place in self._places])
        places = {place: i for i, place in enumerate(self._places)}
        # means combine different kinds of quantities
        single = [place for place in self._places if place.family != "mean_size"]
        steps = group_by(single, lambda place: (place.step, place.family)).values()
        self._step_groups = [[places[place] for place in alike] for alike in steps if alike[0].step >= 0]
        self._previous_step = [
            (i, before)
            for place, i in places.items()
            if place.step > 0 and (before := places.get(place._replace(step=place.step - 1))) is not None
        ]
        self.resolutions = np.array([self._resolution(place) for place in self._places])
        own = np.array([[t.distance(reference, place) for t in perturbed] for place in self._places])
        # initial weights have no envelope: every training begins with the same
        own[[place.step < 0 for place in self._places]] = 0.0
        # (places, trainings); one that broke down is far away, but the square of its distance is finite
        self._distances = np.minimum(own, _MAX_DISTANCE)
        self._reference_error = self._squared_error(exact)

    def ratios(self, training: RecordedTraining) -> dict[Quantity, float]:
        """Ratio of distance to rounding by place, in the order of the training."""
        distances = np.array([training.distance(self.reference, place) for place in self._places])
        return dict(zip(self._places, _quotient(distances, self._scales).tolist(), strict=True))

    @functools.cache  # noqa: B019 - an envelope lives as long as verdicts are made with it
    def limits(self, false_alarm: float) -> dict[str, float]:
        """Ratio by family above which a training differs by more than rounding.

        A one-sided prediction limit for the largest ratio of one more training, log-normal, with
        *false_alarm* divided among the families, and a factor for frameworks that round more often than
        the reference. Each family has its own spread, moderated toward the median of all families, like those
        of genes (Smyth 2004, doi:10.2202/1544-6115.1027): eight trainings alone estimate it badly, and a mean
        over the families would widen them all if one of them scatters. At most ``MAX_LIMIT``, whatever the
        log-normal tail gives.
        """
        logs = np.log(self._largest_ratios())
        families, count = logs.shape
        spreads, freedom = self._spreads(logs)
        far = t_quantile(1 - false_alarm / families, freedom) * spreads * math.sqrt(1 + 1 / count)
        limits = _MARGIN * np.exp(logs.mean(axis=1) + far)
        return dict(zip(self._families, np.minimum(limits, self.max_limit).tolist(), strict=True))

    def scale(self, place: Quantity) -> float:
        """Distance of rounding at *place*."""
        return float(self._scales[self._places.index(place)])

    def _spreads(self, logs: np.ndarray) -> tuple[np.ndarray, int]:
        """Standard deviation of *logs* (families, trainings) by family, and its degrees of freedom."""
        freedom = logs.shape[1] - 1
        own = np.var(logs, axis=1, ddof=1)
        usual = float(np.median(own)) * freedom / chi2_quantile(0.5, freedom)
        return np.sqrt((_PRIOR_WEIGHT * usual + own) / (_PRIOR_WEIGHT + 1)), round(
            freedom * min(_PRIOR_WEIGHT, len(own))
        )

    def problem(self, false_alarm: float) -> str:
        """Reason why its limits don't bound rounding; empty if they do.

        One of the reference's own perturbed trainings is beyond them, so a correct training may be as well.
        """
        limits = self.limits(false_alarm)
        largest = dict(zip(self._families, self._largest_ratios().max(axis=1).tolist(), strict=True))
        furthest = max(limits, key=lambda family: largest[family] / limits[family])
        if largest[furthest] <= limits[furthest]:
            return ""
        return (
            f"one perturbed training of the reference deviates {largest[furthest]:.0f} times as much as "
            f"the others in {QUANTITY_NAMES[furthest]}; the limit is {limits[furthest]:.0f} times, so "
            "no verdict is possible"
        )

    def detection_limits(self, false_alarm: float) -> tuple[DetectionLimit, ...]:
        """Smallest error that is detected, by family."""
        limits = self.limits(false_alarm)
        seen: dict[str, dict[str, float]] = {family: {} for family in self._families}
        for place, scale in zip(self._places, self._scales.tolist(), strict=True):
            size = self.reference.size(place)
            # initial values, and tensors that do not move, have no relative error
            if place.step >= 0 and size:
                error = limits[place.family] * scale / size
                seen[place.family][place.tensor] = min(error, seen[place.family].get(place.tensor, math.inf))
        return tuple(
            DetectionLimit(family, statistics.median(errors.values()), errors[tensor], tensor)
            for family, errors in seen.items()
            if errors
            for tensor in [max(errors, key=errors.__getitem__)]
        )

    @functools.cached_property
    def _scales(self) -> np.ndarray:
        """Distance of rounding at each place (places,)."""
        return self._smooth(
            np.maximum(np.mean(self._distances**2, axis=1, keepdims=True), self._reference_error)
        )[:, 0]

    def _smooth(self, squares: np.ndarray) -> np.ndarray:
        """Distances of rounding from mean *squares* of distances (places, n), with lower bounds.

        Few trainings estimate them badly: a place where all of them were close by chance would make any other
        training look far. So no distance is below the resolution of its numbers, the same quantity one step
        before, or the upper quartile of the tensors of its step, relative to their sizes.
        """
        sizes = self._sizes[:, None]
        relative = np.sqrt(squares) / np.where(sizes > 0, sizes, np.inf)
        for members in self._step_groups:
            relative[members] = np.maximum(
                relative[members], np.quantile(relative[members], _TYPICAL_QUANTILE, axis=0)
            )
        for now, before in self._previous_step:
            relative[now] = np.maximum(relative[now], relative[before])
        distances: np.ndarray = np.maximum(relative * sizes, self.resolutions[:, None])
        np.maximum(distances, np.sqrt(squares), out=distances)
        return distances

    def _largest_ratios(self) -> np.ndarray:
        """Largest ratio of each perturbed training against the others (families, trainings)."""
        squares = self._distances**2
        others = (squares.sum(axis=1, keepdims=True) - squares) / (squares.shape[1] - 1)
        ratios = _quotient(self._distances, self._smooth(np.maximum(others, self._reference_error)))
        of = np.array([place.family for place in self._places])
        # a distance below the resolution of its numbers carries no information about rounding
        return np.array([ratios[of == family].max(axis=0, initial=1.0) for family in self._families])

    def _squared_error(self, exact: RecordedTraining | None) -> np.ndarray:
        """Square of the reference's own distance from the *exact* training, at each place (places, 1).

        All trainings of the reference may share an error that a framework need not make: for example, they
        sum in one order and the framework in parts. No training needs to be closer to the reference than the
        reference is to the exact training.
        """
        if exact is None:
            return np.zeros((len(self._places), 1))
        distances = np.array([[exact.distance(self.reference, place)] for place in self._places])
        distances[[place.step < 0 for place in self._places]] = 0.0
        # a place where it broke down, or has no value, gives no information
        squared: np.ndarray = np.where(distances < _MAX_DISTANCE, distances, 0.0) ** 2
        return squared

    def _resolution(self, place: Quantity) -> float:
        """Distance below the resolution of the numbers themselves.

        A loss and an element are fp32 at most; a norm is a sum of as many squares as there are
        parameters, and its error grows with the depth of a pairwise sum (Higham 2002, section 4.2).
        Buffers are cast to the compute dtype by some frameworks and not by others.
        """
        if place.family == "buffer":
            return EPSILON.get(self._compute, _EPS32) * self.reference.size(place)
        if place.family == "parameter":
            # an update is known only as exactly as the parameter itself
            place = place._replace(step=-1)
        depth = math.log2(max(2, self._parameters)) if place.family == "grad_norm" else 1.0
        return depth * _EPS32 * self.reference.size(place)


def _quotient(distances: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Ratio of *distances* to *scales*: 0 if there is no distance, infinite on a scale of 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(distances == 0, 0.0, distances / scales)
