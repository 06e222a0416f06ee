"""How far apart two trainings are, and how far rounding alone drives them apart.

The reference is trained several times with changes as small as rounding. Their distances from it
are the scale of each quantity: a loss, a gradient norm, a gradient, a parameter, each at its step.
A case's ratio is its largest distance over that scale; the ratios that the reference's own
trainings reach, each against the others, show how large a ratio rounding makes.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from distbench.analysis.quantiles import t_quantile
from distbench.record import Record
from distbench.trial import SKETCH

FAMILIES = ("loss", "gradient", "grad_norm", "parameter")
"""What is compared, in the order of a step; the norm is the one that the framework reports."""

_EPS32 = float(np.finfo(np.float32).eps)
# a correct framework may round several times more often than the reference: twice the distance allows
# four times as often
_MARGIN = 2.0
_FAR = 1e150


class Place(NamedTuple):
    """One quantity of a training."""

    step: int
    """-1: before the first step."""
    family: str
    tensor: str = ""

    @property
    def order(self) -> tuple[int, int, str]:
        """Order of events in a training."""
        return self.step, FAMILIES.index(self.family), self.tensor


@dataclass(frozen=True)
class Training:
    """The values of one training of a check."""

    values: Mapping[Place, np.ndarray]
    """Place -> its number, or the sketch of its tensor (16,). Of a parameter, from step 0 on, of how far
    it has moved since the start: an error of an update would vanish beside the parameter."""
    digests: Mapping[Place, str]
    """Place of a tensor -> digest of its bits."""

    def distance(self, other: Training, place: Place) -> float:
        """Distance of the two at *place*; infinite where one of them has no value."""
        mine, theirs = self.values.get(place), other.values.get(place)
        if mine is None or theirs is None:
            return math.inf
        distance = _length(mine - theirs)
        return distance if math.isfinite(distance) else math.inf

    def size(self, place: Place) -> float:
        """Size that a distance at *place* is relative to: the length of the value there."""
        return _length(self.values[place])


def trainings(record: Record) -> dict[str, Training]:
    """Trainings that a record of a check holds, by name."""
    values: dict[str, dict[Place, np.ndarray]] = defaultdict(dict)
    digests: dict[str, dict[Place, str]] = defaultdict(dict)
    for row in record.tables.get("check_curve", []):
        for family in ("loss", "grad_norm"):
            # null, which stands for what is no number, becomes one that is none
            number = np.array([row[family]], dtype=np.float64)
            values[row["training"]][Place(row["step"], family)] = number
    for row in record.tables.get("check_tensors", []):
        place = Place(row["step"], row["of"], row["tensor"])
        sketch = [row[column] for column in SKETCH]
        values[row["training"]][place] = np.array(sketch, dtype=np.float64)
        digests[row["training"]][place] = row["digest"]
    return {name: Training(_with_moves(own), digests[name]) for name, own in values.items()}


def _with_moves(values: dict[Place, np.ndarray]) -> dict[Place, np.ndarray]:
    nowhere = np.full(len(SKETCH), math.nan)
    return {
        place: value - values.get(place._replace(step=-1), nowhere)
        if place.family == "parameter" and place.step >= 0
        else value
        for place, value in values.items()
    }


def _length(vector: np.ndarray) -> float:
    # numpy's own norm spends most of its time on other cases than this one
    return math.sqrt(float(vector @ vector))


class Envelope:
    """What rounding does to the trainings of one reference."""

    def __init__(self, reference: Training, perturbed: Sequence[Training], parameters: int) -> None:
        """*parameters* is the number of elements of the model."""
        self.reference = reference
        self._parameters = parameters
        self._places = sorted(reference.values, key=lambda place: place.order)
        self._resolutions = np.array([self._resolution(place) for place in self._places])
        own = np.array([[t.distance(reference, place) for t in perturbed] for place in self._places])
        # initial weights have no envelope: every training begins with the same
        own[[place.step < 0 for place in self._places]] = 0.0
        # (places, trainings); one that broke down is far, but its square is still a number
        self._own = np.minimum(own, _FAR)

    def ratios(self, training: Training) -> dict[Place, float]:
        """Ratio of distance to rounding by place, in the order of the training."""
        distances = np.array([training.distance(self.reference, place) for place in self._places])
        scales = np.maximum(np.sqrt(np.mean(self._own**2, axis=1)), self._resolutions)
        return dict(zip(self._places, _over(distances, scales).tolist(), strict=True))

    @functools.cache  # noqa: B019 - an envelope lives as long as verdicts are made with it
    def limits(self, false_alarm: float) -> dict[str, float]:
        """Ratio by family above which a training differs by more than rounding.

        A one-sided prediction limit for the largest ratio of one more training, log-normal, its
        spread pooled over the families, with *false_alarm* shared out over them, and a factor for
        frameworks that round more often than the reference.
        """
        logs = np.log(self._largest())
        families, count = logs.shape
        spread = math.sqrt(np.mean(np.var(logs, axis=1, ddof=1)))
        quantile = t_quantile(1 - false_alarm / families, (count - 1) * families)
        far = quantile * spread * math.sqrt(1 + 1 / count)
        return {
            family: _MARGIN * math.exp(float(mean) + far)
            for family, mean in zip(FAMILIES, logs.mean(axis=1), strict=True)
        }

    def _largest(self) -> np.ndarray:
        """Largest ratio of each perturbed training against the others (families, trainings)."""
        squares = self._own**2
        others = (squares.sum(axis=1, keepdims=True) - squares) / (squares.shape[1] - 1)
        scales = np.maximum(np.sqrt(np.maximum(others, 0.0)), self._resolutions[:, None])
        ratios = _over(self._own, scales)
        family = np.array([FAMILIES.index(place.family) for place in self._places])
        # a distance below the resolution of its numbers says nothing about how far rounding goes
        return np.array([ratios[family == i].max(axis=0, initial=1.0) for i in range(len(FAMILIES))])

    def _resolution(self, place: Place) -> float:
        """Distance below the resolution of the numbers themselves.

        A loss and an element are fp32 at most; a norm is a sum of as many squares as there are
        parameters, and its error grows with the depth of a pairwise sum (Higham 2002, section 4.2).
        """
        if place.family == "parameter":
            # what has moved is known as well as the parameter itself
            place = place._replace(step=-1)
        depth = math.log2(max(2, self._parameters)) if place.family == "grad_norm" else 1.0
        return depth * _EPS32 * self.reference.size(place)


def _over(distances: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Quotient; no distance is 0 on any scale, and any distance infinite on a scale of 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(distances == 0, 0.0, distances / scales)
