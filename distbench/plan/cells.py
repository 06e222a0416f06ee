"""The cells of a suite: strategy x world size x work, with include and exclude."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from distbench.errors import SuiteError
from distbench.plan.matching import has_one_of
from distbench.spec import Suite
from distbench.spec.cells import Axis, Exclude, Include, StrategyChoice, selections
from distbench.spec.places import KeyPath
from distbench.spec.work import Raw

MAX_CASES = 100_000


@dataclass(frozen=True)
class Cell:
    """One combination, its work not checked yet."""

    strategy: StrategyChoice
    world_size: int
    work: Raw
    origins: dict[tuple[str, ...], KeyPath]
    """Path in the work -> where in the suite the value was listed."""
    varied: tuple[tuple[str, ...], ...]
    """The paths in the work that the suite varies, in its own order."""
    block: KeyPath
    """The ``include`` that the cell comes from; empty for the suite itself."""
    sizes_given: bool
    """Whether the suite gave the world sizes, or the machine did (``auto``)."""

    def place_of(self, field: tuple[str, ...]) -> KeyPath:
        """Return where in the suite the value of *field* of the work stands."""
        for length in range(len(field), 0, -1):
            if field[:length] in self.origins:
                return (*self.origins[field[:length]], *field[length:])
        return field


@dataclass(frozen=True)
class _Block:
    """The suite itself, or one of its includes."""

    origin: KeyPath
    strategies: Sequence[StrategyChoice]
    world_sizes: Sequence[int]
    sizes_given: bool
    axes: Sequence[Axis]

    @property
    def size(self) -> int:
        return (
            math.prod(len(axis.values) for axis in self.axes) * len(self.world_sizes) * len(self.strategies)
        )


def auto_world_sizes(devices: int) -> tuple[int, ...]:
    """Return the powers of two up to *devices*, and *devices*."""
    powers = [2**i for i in range(max(devices, 1).bit_length())]
    return tuple(sorted({*powers, max(devices, 1)}))


def cells(suite: Suite, devices: int) -> list[Cell]:
    """Return all cells of *suite* on a machine of *devices* devices.

    Raises:
        SuiteError: there are far too many, or a glob of include or exclude matches no strategy.
    """
    _check_globs(suite)
    blocks = list(_blocks(suite, suite.world_sizes or auto_world_sizes(devices)))
    count = sum(block.size for block in blocks)
    if count > MAX_CASES:
        message = f"makes {count:,} cases, more than {MAX_CASES:,}; vary less at once"
        raise SuiteError([suite.places.mistake(("axes",) if "axes" in suite.tree else (), message)])
    return [
        cell
        for block in blocks
        for cell in _cells_of(suite, block)
        if not any(_is_excluded(cell, exclude) for exclude in suite.exclude)
    ]


def _blocks(suite: Suite, world_sizes: Sequence[int]) -> Iterator[_Block]:
    given = suite.world_sizes is not None
    yield _Block((), suite.strategies, world_sizes, given, suite.axes)
    for include in suite.include:
        yield _Block(
            include.origin,
            [s for s in suite.strategies if fnmatch.fnmatchcase(s.label, include.strategy)],
            include.world_sizes or world_sizes,
            given or include.world_sizes is not None,
            _axes_of(suite, include),
        )


def _axes_of(suite: Suite, include: Include) -> list[Axis]:
    # what an include gives is fixed, with all that lies below it; the other axes keep their values
    fixed = [axis.path for axis in include.axes]
    kept = [axis for axis in suite.axes if not any(axis.path[: len(path)] == path for path in fixed)]
    return [*kept, *include.axes]


def _cells_of(suite: Suite, block: _Block) -> Iterator[Cell]:
    sizes = {id(s): set(s.plugin.instance.world_sizes(block.world_sizes)) for s in block.strategies}
    in_use = sorted(set().union(*sizes.values()))
    varied = tuple(axis.path for axis in block.axes)
    for work, origins in selections(suite.work, block.axes):
        for world_size in in_use:
            for strategy in block.strategies:
                if world_size in sizes[id(strategy)]:
                    yield Cell(strategy, world_size, work, origins, varied, block.origin, block.sizes_given)


def _is_excluded(cell: Cell, exclude: Exclude) -> bool:
    return (
        fnmatch.fnmatchcase(cell.strategy.label, exclude.strategy)
        and (exclude.world_sizes is None or cell.world_size in exclude.world_sizes)
        and all(has_one_of(cell.work, cell.world_size, path, them) for path, them in exclude.values.items())
    )


def _check_globs(suite: Suite) -> None:
    labels = [strategy.label for strategy in suite.strategies]
    parts: list[Include | Exclude] = [*suite.include, *suite.exclude]
    message = f"matches no strategy here; labels: {', '.join(labels)}"
    wrong = [
        suite.places.mistake((*part.origin, "strategy"), message, part.strategy)
        for part in parts
        if not fnmatch.filter(labels, part.strategy)
    ]
    if wrong:
        raise SuiteError(wrong)
