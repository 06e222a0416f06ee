"""The cells of a suite: strategy x world size x work, with include and exclude."""

import fnmatch
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from distbench.core import registry
from distbench.core.case import NATIVE_ENGINE
from distbench.core.errors import SuiteError
from distbench.core.machine import Machine
from distbench.core.suite_mistakes import KeyPath
from distbench.strategies.base import Strategy
from distbench.suite import Suite
from distbench.suite.batch import BatchConfig, IndivisibleBatchError
from distbench.suite.cells import (
    CaseFilter,
    StrategyVariant,
    SuiteAxis,
    ValueOrigins,
    combinations,
    effective_axes,
)
from distbench.suite.sections import section_defaults
from distbench.suite.work import PLUGIN_KEYS, SECTION_KEYS, RawMapping, fill_derived

MAX_CASES = 100_000


@dataclass(frozen=True)
class SuiteCell:
    """One combination of strategy, world size and work, with unchecked work."""

    strategy: StrategyVariant
    world_size: int
    work: RawMapping
    origins: ValueOrigins
    varied_paths: tuple[tuple[str, ...], ...]
    """Paths in the work that the suite varies, in the suite's order."""
    include: KeyPath
    """The ``include`` that the cell comes from; empty for the suite itself."""
    has_explicit_sizes: bool
    """True if the world sizes come from the suite, not from the machine (``auto``)."""

    @property
    def is_optional(self) -> bool:
        """True if the cell is dropped silently where it does not fit."""
        return self.strategy.is_from_auto_mesh

    @property
    def data_ranks(self) -> int:
        """Number of ranks with rows of their own."""
        strategy: Strategy = self.strategy.plugin.instance
        return strategy.data_parallel_size(self.world_size)

    def source_of(self, field: tuple[str, ...]) -> KeyPath:
        """Place in the suite of the value of *field* of the work."""
        for length in range(len(field), 0, -1):
            if field[:length] in self.origins:
                return (*self.origins[field[:length]], *field[length:])
        return field


@dataclass(frozen=True)
class _CellBlock:
    """The suite itself, or one of its includes."""

    origin: KeyPath
    strategies: Sequence[StrategyVariant]
    world_sizes: Sequence[int]
    has_explicit_sizes: bool
    axes: Sequence[SuiteAxis]
    case_filter: CaseFilter | None = None
    """The include, whose glob selects the labels."""

    def strategies_at(self, world_size: int, strategies: Iterable[StrategyVariant]) -> list[StrategyVariant]:
        """Return *strategies* in their meshes of *world_size* devices."""
        every = [each for strategy in strategies for each in strategy.meshes_for(world_size)]
        return [each for each in every if self.case_filter is None or _matches(each, self.case_filter)]

    @property
    def size(self) -> int:
        return (
            math.prod(len(axis.values) for axis in self.axes) * len(self.world_sizes) * len(self.strategies)
        )


def auto_world_sizes(devices: int, nodes: int = 1) -> tuple[int, ...]:
    """World sizes on *nodes* with as many of the *devices* each.

    Powers of two within a node, then a whole node, and whole nodes: powers of two of them, and all of them.
    """
    of_one = max(devices // nodes, 1)
    return tuple(sorted({*_powers_of_two(of_one), *(of_one * many for many in _powers_of_two(nodes))}))


def _powers_of_two(most: int) -> list[int]:
    """Powers of two up to *most*, and *most*."""
    return [*(2**i for i in range(most.bit_length())), most]


def expand_cells(suite: Suite, machine: Machine) -> list[SuiteCell]:
    """All cells of *suite* on *machine*.

    Raises:
        SuiteError: there are far too many, or a glob in include or exclude matches no strategy.
    """
    blocks = list(_blocks(suite, suite.world_sizes or auto_world_sizes(machine.devices, machine.nodes)))
    _check_globs(suite, blocks)
    count = sum(block.size for block in blocks)
    if count > MAX_CASES:
        message = f"gives {count:,} cases, more than {MAX_CASES:,}; vary fewer fields at once"
        raise SuiteError([suite.source_map.mistake(("axes",) if "axes" in suite.tree else (), message)])
    return [
        cell
        for block in blocks
        for cell in _block_cells(suite, block)
        if not any(_is_excluded(cell, exclude) for exclude in suite.exclude)
    ]


def _blocks(suite: Suite, world_sizes: Sequence[int]) -> Iterator[_CellBlock]:
    given = suite.world_sizes is not None
    yield _CellBlock((), suite.strategies, world_sizes, given, suite.axes)
    for include in suite.include:
        sizes = include.world_sizes or world_sizes
        yield _CellBlock(
            include.origin,
            [
                strategy
                for strategy in suite.strategies
                if any(_matches(each, include) for size in sizes for each in strategy.meshes_for(size))
            ],
            sizes,
            given or include.world_sizes is not None,
            effective_axes(include, suite.axes),
            include,
        )


def _block_cells(suite: Suite, block: _CellBlock) -> Iterator[SuiteCell]:
    sizes = {id(s): set(s.plugin.instance.world_sizes(block.world_sizes)) for s in block.strategies}
    in_use = sorted(set().union(*sizes.values()))
    varied = tuple(axis.path for axis in block.axes)
    # once: the same object is the same choice
    there = {
        size: block.strategies_at(size, [s for s in block.strategies if size in sizes[id(s)]])
        for size in in_use
    }
    for work, origins in combinations(suite.work, block.axes):
        for world_size in in_use:
            for strategy in there[world_size]:
                yield SuiteCell(
                    strategy, world_size, work, origins, varied, block.origin, block.has_explicit_sizes
                )


def _matches(strategy: StrategyVariant, case_filter: CaseFilter) -> bool:
    return fnmatch.fnmatchcase(strategy.label, case_filter.strategy)


def _is_excluded(cell: SuiteCell, exclude: CaseFilter) -> bool:
    return (
        _matches(cell.strategy, exclude)
        and (exclude.world_sizes is None or cell.world_size in exclude.world_sizes)
        and all(_has_axis_value(cell, axis) for axis in exclude.axes)
    )


def _check_globs(suite: Suite, blocks: Sequence[_CellBlock]) -> None:
    every = {size for block in blocks for size in block.world_sizes}
    labels = [
        *dict.fromkeys(each.label for s in suite.strategies for size in every for each in s.meshes_for(size))
    ]
    message = f"matches no strategy; labels: {', '.join(labels)}"
    wrong = [
        suite.source_map.mistake((*part.origin, "strategy"), message, part.strategy)
        for part in (*suite.include, *suite.exclude)
        if not fnmatch.filter(labels, part.strategy)
    ]
    if wrong:
        raise SuiteError(wrong)


def _has_axis_value(cell: SuiteCell, axis: SuiteAxis) -> bool:
    """True if the field of *axis* has one of its values in *cell*, explicitly or by default."""
    root, *rest = axis.path
    actual = _with_defaults(cell, root)
    for key in rest:
        actual = actual.get(key) if isinstance(actual, dict) else None
    return any(_is_equal(root, rest, actual, value) for value in axis.values)


def _is_equal(root: str, rest: list[str], actual: Any, value: Any) -> bool:
    if rest or not isinstance(value, dict) or not isinstance(actual, dict):
        return bool(actual == value)
    if root in PLUGIN_KEYS:
        ((name, options),) = value.items()
        return name in actual and all(actual[name].get(key) == option for key, option in options.items())
    return bool(actual == (_section(root, value) if root in SECTION_KEYS else value))


def _with_defaults(cell: SuiteCell, root: str) -> Any:
    """Value of *root* in *cell* with its defaults; for the batch, as it is divided."""
    work = cell.work
    if root in PLUGIN_KEYS:
        return _plugin(work, root)
    if root == "batch":
        return _section(root, work["batch"]) | _divided_batch(work["batch"], cell)
    return _section(root, work.get(root, {})) if root in SECTION_KEYS else work[root]


def _section(root: str, raw: RawMapping) -> RawMapping:
    return {**section_defaults(SECTION_KEYS[root]), **fill_derived(root, raw)}


def _plugin(work: RawMapping, root: str) -> RawMapping:
    raw = work.get(root)
    if raw is None and root == "engine":
        raw = NATIVE_ENGINE.to_yaml()
    if raw is None:
        ((workload, given),) = work["workload"].items()
        raw = {registry.load_plugin("workloads", workload).default_data_for(given): {}}
    ((name, options),) = raw.items()
    return {name: {**section_defaults(registry.load_plugin(PLUGIN_KEYS[root], name)), **options}}


def _divided_batch(raw: RawMapping, cell: SuiteCell) -> RawMapping:
    spec = BatchConfig(**raw)
    if spec.problems():
        return {}
    try:
        batch = spec.divide(cell.world_size, cell.data_ranks)
    except IndivisibleBatchError:
        return {}
    return {
        "global_batch_size": batch.global_batch_size,
        "per_device_batch_size": batch.global_batch_size // cell.world_size,
        "micro_batch_size": batch.micro_batch_size,
        "gradient_accumulation_steps": batch.gradient_accumulation_steps,
    }
