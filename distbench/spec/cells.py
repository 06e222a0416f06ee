"""The parts of a suite that make many cases of it: strategies, axes, include, exclude."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from distbench.spec.checking import Finding
from distbench.spec.places import KeyPath
from distbench.spec.plugins import Plugin
from distbench.spec.work import Raw, assign

Origins = Mapping[tuple[str, ...], KeyPath]
"""Path in the work -> where in the suite the value was listed."""


@dataclass(frozen=True)
class Axis:
    """One field of the work that takes several values."""

    path: tuple[str, ...]
    values: tuple[Any, ...]
    origins: tuple[KeyPath, ...]
    """Where in the suite each value stands."""


@dataclass(frozen=True)
class StrategyChoice:
    """A strategy with one value for each option."""

    plugin: Plugin
    origin: KeyPath
    """Where in the suite it is named; options that list values follow it."""

    @property
    def label(self) -> str:
        """Short name with the options that matter."""
        label: str = self.plugin.instance.label
        return label


@dataclass(frozen=True)
class Include:
    """Extra cells: the suite with some fields replaced."""

    origin: KeyPath
    strategy: str
    """Glob on the label."""
    world_sizes: tuple[int, ...] | None
    """None: those of the suite."""
    axes: tuple[Axis, ...]


@dataclass(frozen=True)
class Exclude:
    """Cells to leave out: those that have all of these values."""

    origin: KeyPath
    strategy: str
    world_sizes: tuple[int, ...] | None
    values: dict[tuple[str, ...], list[Any]]
    """Path in the work -> the values that match, in normal form."""


def selections(work: Raw, axes: Sequence[Axis]) -> Iterator[tuple[Raw, dict[tuple[str, ...], KeyPath]]]:
    """Yield the work for each combination of the values of *axes*, and where these values stand."""
    ordered = in_order(axes)
    for indices in itertools.product(*(range(len(axis.values)) for axis in ordered)):
        yield select(work, ordered, indices)


def select(
    work: Raw, ordered: Sequence[Axis], indices: Sequence[int]
) -> tuple[Raw, dict[tuple[str, ...], KeyPath]]:
    """Return *work* with one value of each axis, and where these values stand."""
    origins = {}
    for axis, index in zip(ordered, indices, strict=True):
        work = assign(work, axis.path, axis.values[index])
        origins[axis.path] = axis.origins[index]
    return work, origins


def in_order(axes: Sequence[Axis]) -> list[Axis]:
    """Return *axes* so that ``precision`` is replaced before ``precision.reduce``."""
    return sorted(axes, key=lambda axis: len(axis.path))


def located(finding: Finding, origins: Origins) -> Finding:
    """Return *finding* at the place in the suite from which the wrong value came."""
    for length in range(len(finding.path), 0, -1):
        origin = origins.get(tuple(map(str, finding.path[:length])))
        if origin is not None:
            return replace(finding, path=(*origin, *finding.path[length:]))
    return finding
