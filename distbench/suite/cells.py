"""The parts of a suite that produce its cases: strategies, axes, include, exclude."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from distbench.core.suite_mistakes import KeyPath, SuiteMistake
from distbench.suite.plugin_options import Plugin
from distbench.suite.work import Raw, assign

Origins = Mapping[tuple[str, ...], KeyPath]
"""Path in the work -> place of the value in the suite."""


@dataclass(frozen=True)
class Axis:
    """A field of the work with several values."""

    path: tuple[str, ...]
    values: tuple[Any, ...]
    origins: tuple[KeyPath, ...]
    """Place of each value in the suite."""


@dataclass(frozen=True)
class StrategyChoice:
    """A strategy with one value for each option."""

    plugin: Plugin
    origins: tuple[KeyPath, ...]
    """Places in the suite: of each option that lists values that of its own, otherwise of the strategy."""
    is_offered: bool = False
    """Whether it is one of all meshes (``mesh: auto``), which makes no case that it doesn't fit."""

    @property
    def origin(self) -> KeyPath:
        """Its place in messages."""
        return self.origins[0]

    def on(self, world_size: int) -> list["StrategyChoice"]:
        """The strategy on *world_size* devices: in every mesh of them if it asks for all."""
        meshes: Sequence[Any] | None = self.plugin.instance.meshes(world_size)
        if meshes is None:
            return [self]
        return [replace(self, plugin=self.plugin.replaced(each), is_offered=True) for each in meshes]

    @property
    def label(self) -> str:
        """Short name with the relevant options."""
        label: str = self.plugin.instance.label
        return label


@dataclass(frozen=True)
class Part:
    """An include, which adds cells with these values, or an exclude: it leaves out those that have all."""

    origin: KeyPath
    strategy: str
    """Glob on the label."""
    world_sizes: tuple[int, ...] | None
    """None: those of the suite."""
    axes: tuple[Axis, ...]
    """Their values are in normal form."""


def selections(work: Raw, axes: Sequence[Axis]) -> Iterator[tuple[Raw, Origins]]:
    """Yield the work for each combination of values of *axes*, and the places of these values."""
    ordered = in_order(axes)
    for indices in itertools.product(*(range(len(axis.values)) for axis in ordered)):
        yield select(work, ordered, indices)


def select(work: Raw, ordered: Sequence[Axis], indices: Sequence[int]) -> tuple[Raw, Origins]:
    """*work* with one value of each axis, and the places of these values."""
    origins = {}
    for axis, index in zip(ordered, indices, strict=True):
        work = assign(work, axis.path, axis.values[index])
        origins[axis.path] = axis.origins[index]
    return work, origins


def axes_of(include: Part, axes: Sequence[Axis]) -> list[Axis]:
    """The axes of *include*, where *axes* are those of its suite."""
    # a field set by an include is fixed, with everything below it; the other axes keep their values
    fixed = [axis.path for axis in include.axes]
    kept = [axis for axis in axes if not any(axis.path[: len(path)] == path for path in fixed)]
    return [*kept, *include.axes]


def in_order(axes: Sequence[Axis]) -> list[Axis]:
    """*axes* in an order that replaces ``precision`` before ``precision.reduce``."""
    return sorted(axes, key=lambda axis: len(axis.path))


def located(finding: SuiteMistake, origins: Origins) -> SuiteMistake:
    """*finding* at the place in the suite that the wrong value comes from."""
    for length in range(len(finding.path), 0, -1):
        origin = origins.get(tuple(map(str, finding.path[:length])))
        if origin is not None:
            return replace(finding, path=(*origin, *finding.path[length:]))
    return finding
