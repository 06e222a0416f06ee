"""Bounds on the moves of a training that differs by design, relative to those of the reference.

Of honest trainings on 2 and 4 ranks, at learning rates up to 30 times the default, the median tensor moved
0.60 to 1.23 times as far, in a direction whose cosine to the reference's was at least 0.71; single tensors
moved 0.25 to 1.54 times as far (docs/equivalence-evidence.md).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence

import numpy as np

from distbench.core.grouping import group_by
from distbench.jobs.equivalence.arms import LargestDeviation
from distbench.jobs.equivalence.values import Quantity, RecordedTraining
from distbench.strategies.description import IntendedDifference

_MAX_MEDIAN_RATIO = 3.0
_MIN_MEDIAN_COSINE = 0.25
# of a tensor with few elements, a move of the reference may be small by chance: a wide bound, and relative
# to its largest move so far
_MAX_TENSOR_RATIO = 30.0


def excessive_moves(
    training: RecordedTraining, reference: RecordedTraining, design: IntendedDifference
) -> list[LargestDeviation]:
    """First move of the parameters, since the start, that *design* does not explain; empty: there is none."""
    moves = [place for place, size in reference.sizes.items() if size and place.family == "parameter"]
    largest: dict[str, float] = {}
    for step, places in sorted(group_by(moves, lambda place: place.step).items()):
        for place in places:
            largest[place.tensor] = max(largest.get(place.tensor, 0.0), reference.sizes[place])
        if step < max(design.since, design.bounded_from) or (
            design.bounded_until is not None and step >= design.bounded_until
        ):
            continue
        # a tensor that is missing or not finite is reported by itself
        if not all(_is_finite(each, place) for each in (training, reference) for place in places):
            continue
        for place, error, flaw in _flaws(training, reference, places, largest, design.since - 1):
            return [
                LargestDeviation(place, error, math.inf, f"{flaw}; a different design does not explain it")
            ]
    return []


def _flaws(
    training: RecordedTraining,
    reference: RecordedTraining,
    places: Sequence[Quantity],
    largest: dict[str, float],
    before: int,
) -> Iterator[tuple[Quantity, float, str]]:
    """Yield place, relative error and description of each excessive move up to one step.

    *largest* has the longest move of the reference's tensors so far; *before* is the last step in which both
    train alike.
    """
    all_tensors = Quantity(places[0].step, "parameter")
    times = statistics.median(training.sizes[place] / reference.sizes[place] for place in places)
    if not 1 / _MAX_MEDIAN_RATIO <= times <= _MAX_MEDIAN_RATIO:
        allowed = f"allowed: {1 / _MAX_MEDIAN_RATIO:.2g} to {_MAX_MEDIAN_RATIO:g} times"
        yield (
            all_tensors,
            abs(times - 1),
            f"moved {_times(times)} as far as the reference's (median tensor; {allowed})",
        )
    for place in places:
        if training.sizes[place] == 0:
            yield place, 1.0, "did not move, and the reference's did"
    cosine = statistics.median(_cosine(training, reference, place, before) for place in places)
    if cosine < _MIN_MEDIAN_COSINE:
        yield (
            all_tensors,
            1 - cosine,
            f"moved in another direction than the reference's (cosine {cosine:.2f}, median tensor; "
            f"allowed: {_MIN_MEDIAN_COSINE:g} and more)",
        )
    for place in places:
        times = training.sizes[place] / largest[place.tensor]
        if times > _MAX_TENSOR_RATIO:
            yield (
                place,
                times - 1,
                f"moved {_times(times)} as far as the reference's ever did (allowed: {_MAX_TENSOR_RATIO:g})",
            )


def _is_finite(training: RecordedTraining, place: Quantity) -> bool:
    value = training.values.get(place)
    return (
        value is not None
        and bool(np.isfinite(value).all())
        and math.isfinite(training.sizes.get(place, math.nan))
    )


def _cosine(training: RecordedTraining, reference: RecordedTraining, place: Quantity, before: int) -> float:
    """Cosine of the angle between the moves of two trainings since the end of step *before*.

    From their sketches: where it is 0, its standard error is 0.25.
    """
    mine, theirs = (_move_since(each, place, before) for each in (training, reference))
    lengths = math.sqrt(float(mine @ mine) * float(theirs @ theirs))
    return float(mine @ theirs) / lengths if lengths else 0.0


def _move_since(training: RecordedTraining, place: Quantity, before: int) -> np.ndarray:
    move = training.values[place]
    return move - training.values[place._replace(step=before)] if before >= 0 else move


def _times(ratio: float) -> str:
    return f"{ratio:.0f} times" if ratio >= 10 else f"{ratio:.2g} times"
