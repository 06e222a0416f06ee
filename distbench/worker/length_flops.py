"""Mean FLOPs of samples that differ in length."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from distbench.workloads.base import Workload

_FIT, _MIN_LENGTH = 3, 8


@dataclass(frozen=True)
class Flops:
    """Model FLOPs of one sample; None where they are unknown."""

    model: int | None
    """FLOPs of a forward and a backward pass."""
    again: int | None
    """FLOPs that activation checkpointing recomputes."""
    unknown: str = ""
    """Reason why ``model``, otherwise ``again``, is None."""


def mean_flops(
    lengths: Mapping[int, int], samples: int, workload: Workload, flops_of: Callable[[Workload], Flops]
) -> Flops:
    """Mean FLOPs of *samples* samples.

    Args:
        lengths: Length of a sample, or of a document in a packed one -> number of those.
        workload: With the length of the longest possible sample.
        flops_of: FLOPs of a sample of the length that a workload has.
    """
    longest = workload.shape.sample_length
    if workload.with_length(longest) is None:
        return Flops(None, None, f"{type(workload).__name__} does not say how FLOPs depend on the length")
    if not lengths:
        return Flops(None, None, "no step was timed")

    def of_length(length: int) -> Flops:
        shorter = workload.with_length(length)
        assert shorter is not None, "it has other lengths"
        return flops_of(shorter)

    if workload.flops_per_sample() is not None or longest < _MIN_LENGTH:
        found = {length: of_length(length) for length in sorted(lengths)}
    else:
        # a count takes seconds: the few lengths are the same on all ranks, whatever they have
        found = _interpolated(
            {part * longest // 4: of_length(part * longest // 4) for part in (1, 2, 3, 4)}, [*lengths]
        )
    if missing := next((each for each in found.values() if each.model is None), None):
        return missing

    def mean(values: Mapping[int, int]) -> int:
        return round(Fraction(sum(values[length] * count for length, count in lengths.items()), samples))

    model = {length: each.model or 0 for length, each in found.items()}
    if unknown := next((each for each in found.values() if each.again is None), None):
        return Flops(mean(model), None, unknown.unknown)
    return Flops(mean(model), mean({length: each.again or 0 for length, each in found.items()}))


def _interpolated(counted: Mapping[int, Flops], lengths: list[int]) -> dict[int, Flops]:
    """FLOPs of each of *lengths*, by the polynomial of the second degree through those that are *counted*.

    Products grow with the length, and attention with its square. One more length is counted than a polynomial
    needs: if that is not on it, FLOPs are unknown.
    """
    if missing := next((each for each in counted.values() if each.model is None), None):
        return dict.fromkeys(lengths, missing)
    fit, checked = [*counted][-_FIT:], next(iter(counted))
    model = {length: each.model or 0 for length, each in counted.items()}
    if _through(model, fit, checked) != model[checked]:
        why = "FLOPs can't be counted: they are no polynomial of the second degree in the length of a sample"
        return dict.fromkeys(lengths, Flops(None, None, why))
    again = {length: each.again for length, each in counted.items()}
    if unknown := next((each.unknown for each in counted.values() if each.again is None), ""):
        return {length: Flops(_through(model, fit, length), None, unknown) for length in lengths}
    known = {length: number or 0 for length, number in again.items()}
    return {length: Flops(_through(model, fit, length), _through(known, fit, length)) for length in lengths}


def _through(values: Mapping[int, int], fit: list[int], place: int) -> int:
    """Value at *place* of the polynomial through *values* at the places *fit* (Lagrange)."""
    total = Fraction(0)
    for one in fit:
        weight = Fraction(values[one])
        for other in fit:
            if other != one:
                weight *= Fraction(place - other, one - other)
        total += weight
    return round(total)
