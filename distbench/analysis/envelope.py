"""How far apart two trainings are, and how far apart rounding alone puts them.

The reference is trained several times with changes as small as rounding. Their distances from it
are the scale of each quantity: a loss, a gradient norm, a gradient, a parameter, each at its step.
A case's ratio is its largest distance over that scale; the ratios that the reference's own
trainings reach, each against the others, tell how large a ratio rounding makes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import stats

from distbench.record import Record
from distbench.trial import SKETCH

FAMILIES = ("loss", "gradient", "grad_norm", "parameter")
"""What is compared, in the order in which a step makes it; the norm is what the framework says it is."""

_EPS32 = float(np.finfo(np.float32).eps)
# an honest framework may round some times more often than the reference: with twice the distance it
# may do so four times as often
_MARGIN = 2.0


class Place(NamedTuple):
    """One quantity of a training."""

    step: int
    """-1: before the first step."""
    family: str
    tensor: str = ""

    @property
    def order(self) -> tuple[int, int, str]:
        """What comes first in a training."""
        return self.step, FAMILIES.index(self.family), self.tensor


@dataclass(frozen=True)
class Training:
    """What one training of a check left."""

    values: Mapping[Place, np.ndarray]
    """Place -> its number, or the sketch of its tensor (16,). Of a parameter, from step 0 on, of how far
    it has moved since the start: an error of an update would vanish beside the parameter."""
    digests: Mapping[Place, str]
    """Place of a tensor -> digest of its bits."""

    def distance(self, other: Training, place: Place) -> float:
        """Return the distance of the two at *place*; infinite where one of them has nothing."""
        mine, theirs = self.values.get(place), other.values.get(place)
        if mine is None or theirs is None:
            return math.inf
        found = _length(mine - theirs)
        return found if math.isfinite(found) else math.inf

    def size(self, place: Place) -> float:
        """Return what a distance at *place* is relative to: the length of what stands there."""
        return _length(self.values[place])


def trainings(record: Record) -> dict[str, Training]:
    """Return the trainings that a record of a check holds, by name."""
    values: dict[str, dict[Place, np.ndarray]] = {}
    digests: dict[str, dict[Place, str]] = {}
    for row in record.tables.get("check_curve", []):
        found = values.setdefault(row["training"], {})
        for family in ("loss", "grad_norm"):
            number = row[family]
            found[Place(row["step"], family)] = np.array([math.nan if number is None else number])
    for row in record.tables.get("check_tensors", []):
        place = Place(row["step"], row["of"], row["tensor"])
        sketch = [row[column] for column in SKETCH]
        values.setdefault(row["training"], {})[place] = np.array(sketch, dtype=np.float64)
        digests.setdefault(row["training"], {})[place] = row["digest"]
    return {name: Training(_with_moves(found), digests.get(name, {})) for name, found in values.items()}


def _with_moves(values: dict[Place, np.ndarray]) -> dict[Place, np.ndarray]:
    nowhere = np.full(len(SKETCH), math.nan)
    return {
        place: value - values.get(place._replace(step=-1), nowhere)
        if place.family == "parameter" and place.step >= 0
        else value
        for place, value in values.items()
    }


def _own_distance(perturbed: Training, reference: Training, place: Place) -> float:
    return perturbed.distance(reference, place) if place.step >= 0 else 0.0


def _length(vector: np.ndarray) -> float:
    # numpy's own norm spends most of its time on other cases than this one
    return math.sqrt(float(vector @ vector))


class Envelope:
    """What rounding does to the trainings of one reference."""

    def __init__(self, reference: Training, perturbed: Iterable[Training], parameters: int) -> None:
        """*parameters* is the number of elements of the model."""
        self.reference = reference
        self._perturbed = list(perturbed)
        self._parameters = parameters
        self._places = sorted(reference.values, key=lambda place: place.order)
        self._own = {
            place: np.array([_own_distance(t, reference, place) for t in self._perturbed])
            for place in self._places
        }

    def ratios(self, training: Training) -> dict[Place, float]:
        """Return by place, in the order of the training, its distance over what rounding makes of it.

        Initial weights have no envelope: every training begins with the same.
        """
        distances = {place: training.distance(self.reference, place) for place in self._places}
        return {place: self._ratio(place, far, self._own[place]) for place, far in distances.items()}

    def limits(self, false_alarm: float) -> dict[str, float]:
        """Return by family the ratio above which a training differs by more than rounding.

        A one-sided prediction limit for the largest ratio of one more training, log-normal, its
        spread pooled over the families, with *false_alarm* shared out over them, and a factor for
        frameworks that round more often than the reference.
        """
        logs = {family: np.log(largest) for family, largest in self._own_ratios().items()}
        count = len(self._perturbed)
        spread = math.sqrt(np.mean([np.var(values, ddof=1) for values in logs.values()]))
        freedom = (count - 1) * len(logs)
        far = stats.t.ppf(1 - false_alarm / len(FAMILIES), freedom) * spread * math.sqrt(1 + 1 / count)
        return {family: _MARGIN * math.exp(float(values.mean()) + far) for family, values in logs.items()}

    def _own_ratios(self) -> dict[str, np.ndarray]:
        """Return for each perturbed training its largest ratio against the others, by family."""
        found: dict[str, list[float]] = {family: [] for family in FAMILIES}
        for left_out in range(len(self._perturbed)):
            largest = dict.fromkeys(FAMILIES, 0.0)
            for place, distances in self._own.items():
                ratio = self._ratio(place, distances[left_out], np.delete(distances, left_out))
                largest[place.family] = max(largest[place.family], ratio)
            for family in FAMILIES:
                # what stays below the resolution of its numbers says nothing of how far rounding goes
                found[family].append(max(largest[family], 1.0))
        return {family: np.array(values) for family, values in found.items()}

    def _ratio(self, place: Place, distance: float, own: np.ndarray) -> float:
        if distance == 0.0:
            return 0.0
        scale = max(float(np.sqrt(np.mean(own**2))), self._resolution(place))
        return distance / scale if scale else math.inf

    def _resolution(self, place: Place) -> float:
        """Return the distance that the numbers themselves can't resolve.

        A loss and an element are fp32 at most; a norm is a sum of as many squares as there are
        parameters, and its error grows with the depth of a pairwise sum (Higham 2002, section 4.2).
        """
        if place.family == "parameter":
            # what has moved is known as well as the parameter itself
            place = place._replace(step=-1)
        size = self.reference.size(place)
        depth = math.log2(max(2, self._parameters)) if place.family == "grad_norm" else 1.0
        return depth * _EPS32 * size
