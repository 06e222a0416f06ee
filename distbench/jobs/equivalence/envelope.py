"""How far apart two trainings are, and how far rounding alone drives them apart.

The reference is trained several times with changes as small as rounding. Their distances from it
are the scale of each quantity: a loss, a gradient norm, a gradient, a parameter, each at its step.
A case's ratio is its largest distance over that scale; the ratios that the reference's own
trainings reach, each against the others, show how large a ratio rounding makes.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from distbench.analysis.statistics.quantiles import chi2_quantile, t_quantile
from distbench.core.grouping import group_by
from distbench.jobs.equivalence.values import QUANTITY_NAMES, Quantity, RecordedTraining

MAX_LIMIT = 50.0
"""No limit allows more times the distance of rounding: a looser one would tell nothing apart."""

_EPS32 = float(np.finfo(np.float32).eps)
EPSILON = {"bf16": 2.0**-7, "fp16": 2.0**-10}
"""Distance of 1 from the next number in each dtype of 16 bits."""
# a family's own variance has the weight of one, the usual variance of the families that of six
_PRIOR_WEIGHT = 6.0
_TYPICAL_QUANTILE = 0.75
# a correct framework may round several times more often than the reference: twice the distance allows
# four times as often
_MARGIN = 2.0
_MAX_DISTANCE = 1e150


@dataclass(frozen=True)
class DetectionLimit:
    """The smallest relative error of one family that would have been outside of the envelope.

    Of each tensor at its best step: an error that lasts is seen there.
    """

    family: str
    typical: float
    """Of the median tensor."""
    coarsest: float
    """Of the tensor in which most hides."""
    tensor: str
    """That tensor."""


class RoundingEnvelope:
    """What rounding does to the trainings of one reference."""

    max_limit: ClassVar[float] = MAX_LIMIT

    def __init__(
        self,
        reference: RecordedTraining,
        perturbed: Sequence[RecordedTraining],
        parameters: int,
        compute: str = "fp32",
        exact: RecordedTraining | None = None,
    ) -> None:
        """The envelope of *reference*, which *perturbed* trainings surround.

        Args:
            parameters: Number of elements of the model.
            compute: Dtype that it is computed in.
            exact: The same training in fp64; None: there is none, or rounding to *compute* is no measure of
                rounding, as in 16 bits, where every honest training rounds the same weights alike.
        """
        self.reference = reference
        self._parameters, self._compute = parameters, compute
        self._places = sorted(reference.values, key=lambda place: place.order)
        self._families = [
            family for family in QUANTITY_NAMES if any(p.family == family for p in self._places)
        ]
        self._sizes = np.array([reference.size(place) for place in self._places])
        places = {place: i for i, place in enumerate(self._places)}
        # means are of unlike things
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
        # (places, trainings); one that broke down is far, but its square is still a number
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
        *false_alarm* shared out over the families, and a factor for frameworks that round more often than
        the reference. Each family has a spread of its own, moderated toward the usual one, the median of the
        families', as those of genes are (Smyth 2004, doi:10.2202/1544-6115.1027): eight trainings alone
        know it badly, and a mean over the families would widen them all where one of them scatters. At most
        ``MAX_LIMIT``, whatever a log-normal tail comes to.
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
        """Why its limits don't say how far rounding goes; empty if they do.

        One of the reference's own trainings is beyond them, so an honest one may be as well.
        """
        limits = self.limits(false_alarm)
        largest = dict(zip(self._families, self._largest_ratios().max(axis=1).tolist(), strict=True))
        furthest = max(limits, key=lambda family: largest[family] / limits[family])
        if largest[furthest] <= limits[furthest]:
            return ""
        return (
            f"rounding alone takes one training of the reference {largest[furthest]:.0f} times as far from "
            f"it as the others, in {QUANTITY_NAMES[furthest]}, and the limit is {limits[furthest]:.0f} times"
        )

    def detection_limits(self, false_alarm: float) -> tuple[DetectionLimit, ...]:
        """The smallest error that is seen, by family."""
        limits = self.limits(false_alarm)
        seen: dict[str, dict[str, float]] = {family: {} for family in self._families}
        for place, scale in zip(self._places, self._scales.tolist(), strict=True):
            size = self.reference.size(place)
            # what every training begins with, and what stands still, has no relative error
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
        """Distances of rounding from mean *squares* of distances (places, n); few trainings know them badly.

        A place where none of them was far, by luck, would make any other far: so none has less than the
        resolution of its numbers, than the same quantity one step before, or than the usual tensor of its
        step (the upper quartile), relative to their sizes.
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
        # a distance below the resolution of its numbers says nothing about how far rounding goes
        return np.array([ratios[of == family].max(axis=0, initial=1.0) for family in self._families])

    def _squared_error(self, exact: RecordedTraining | None) -> np.ndarray:
        """Square of the reference's own distance from the *exact* training, at each place (places, 1).

        All of the reference's trainings may share an error that a framework need not make: theirs is a sum
        in one order, say, where another's is in parts. None may be asked to be closer to the reference than
        that is to the truth.
        """
        if exact is None:
            return np.zeros((len(self._places), 1))
        apart = np.array([[exact.distance(self.reference, place)] for place in self._places])
        apart[[place.step < 0 for place in self._places]] = 0.0
        # where it broke down, or has no value, it says nothing
        squared: np.ndarray = np.where(apart < _MAX_DISTANCE, apart, 0.0) ** 2
        return squared

    def _resolution(self, place: Quantity) -> float:
        """Distance below the resolution of the numbers themselves.

        A loss and an element are fp32 at most; a norm is a sum of as many squares as there are
        parameters, and its error grows with the depth of a pairwise sum (Higham 2002, section 4.2).
        Buffers are cast to the dtype of the computation by some frameworks and left alone by others.
        """
        if place.family == "buffer":
            return EPSILON.get(self._compute, _EPS32) * self.reference.size(place)
        if place.family == "parameter":
            # what has moved is known as well as the parameter itself
            place = place._replace(step=-1)
        depth = math.log2(max(2, self._parameters)) if place.family == "grad_norm" else 1.0
        return depth * _EPS32 * self.reference.size(place)


def _quotient(distances: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Quotient; no distance is 0 on any scale, and any distance infinite on a scale of 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(distances == 0, 0.0, distances / scales)
