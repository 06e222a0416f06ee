"""The parts of a suite that produce its cases: strategies, axes, include, exclude."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from distbench.core.case import PluginChoice
from distbench.core.suite_mistakes import KeyPath, Problem
from distbench.suite.plugin_options import CheckedPlugin
from distbench.suite.work import RawMapping, set_path

LABEL_OPTION = "label"
"""Key beside the options of a strategy; no strategy has such an option, as each has a label of its own."""
ValueOrigins = Mapping[tuple[str, ...], KeyPath]
"""Path in the work -> place of the value in the suite."""


@dataclass(frozen=True)
class SuiteAxis:
    """A field of the work with several values."""

    path: tuple[str, ...]
    values: tuple[Any, ...]
    origins: tuple[KeyPath, ...]
    """Place of each value in the suite."""


@dataclass(frozen=True)
class StrategyVariant:
    """A strategy with one value for each option."""

    plugin: CheckedPlugin
    origins: tuple[KeyPath, ...]
    """Places in the suite: an option that lists values has its own, the others have the strategy's."""
    is_from_auto_mesh: bool = False
    """True for one of all meshes (``mesh: auto``), which makes no case where it doesn't fit."""
    given_label: str = ""
    """Label in the suite; empty: that of the strategy."""

    @property
    def origin(self) -> KeyPath:
        """Its place in messages."""
        return self.origins[0]

    def meshes_for(self, world_size: int) -> list["StrategyVariant"]:
        """The strategy on *world_size* devices: in each possible mesh if it requests all."""
        meshes: Sequence[Any] | None = self.plugin.instance.mesh_variants(world_size)
        if meshes is None:
            return [self]
        return [
            replace(self, plugin=self.plugin.with_instance(each), is_from_auto_mesh=True) for each in meshes
        ]

    @property
    def label(self) -> str:
        """Name in the suite, or else a short name with the relevant options."""
        own: str = self.plugin.instance.label
        return self.given_label or own

    def to_yaml(self) -> dict[str, Any]:
        """The strategy as a suite has it in YAML."""
        label = {LABEL_OPTION: self.given_label} if self.given_label else {}
        return PluginChoice(self.plugin.choice.name, {**self.plugin.choice.options, **label}).to_yaml()


@dataclass(frozen=True)
class CaseFilter:
    """An include or an exclude.

    An include adds cells with these values, an exclude removes cells that have all of them.
    """

    origin: KeyPath
    strategy: str
    """Glob on the label."""
    world_sizes: tuple[int, ...] | None
    """None: those of the suite."""
    axes: tuple[SuiteAxis, ...]
    """Axes whose values are in normal form."""


def combinations(work: RawMapping, axes: Sequence[SuiteAxis]) -> Iterator[tuple[RawMapping, ValueOrigins]]:
    """Yield the work for each combination of values of *axes*, and the places of these values."""
    ordered = outer_first(axes)
    for indices in itertools.product(*(range(len(axis.values)) for axis in ordered)):
        yield select_values(work, ordered, indices)


def select_values(
    work: RawMapping, ordered: Sequence[SuiteAxis], indices: Sequence[int]
) -> tuple[RawMapping, ValueOrigins]:
    """*work* with one value of each axis, and the places of these values."""
    origins = {}
    for axis, index in zip(ordered, indices, strict=True):
        work = set_path(work, axis.path, axis.values[index])
        origins[axis.path] = axis.origins[index]
    return work, origins


def effective_axes(include: CaseFilter, axes: Sequence[SuiteAxis]) -> list[SuiteAxis]:
    """Axes of *include*, where *axes* are those of its suite."""
    # a field set by an include is fixed, with everything below it; the other axes keep their values
    fixed = [axis.path for axis in include.axes]
    kept = [axis for axis in axes if not any(axis.path[: len(path)] == path for path in fixed)]
    return [*kept, *include.axes]


def outer_first(axes: Sequence[SuiteAxis]) -> list[SuiteAxis]:
    """Sort *axes* so that ``precision`` is replaced before ``precision.reduce``."""
    return sorted(axes, key=lambda axis: len(axis.path))


def move_to_origin(problem: Problem, origins: ValueOrigins) -> Problem:
    """Move *problem* to the place in the suite that the wrong value comes from."""
    for length in range(len(problem.path), 0, -1):
        origin = origins.get(tuple(map(str, problem.path[:length])))
        if origin is not None:
            return replace(problem, path=(*origin, *problem.path[length:]))
    return problem
