"""What would fit in place of a mesh that does not: other meshes, or other world sizes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from distbench.core import meshes
from distbench.core.case import Case, Choice
from distbench.strategies.base import Strategy
from distbench.suite.batch import BatchSpec, Indivisible
from distbench.suite.sections import to_plain

T = TypeVar("T")

_MOST = 2
"""Alternatives that are named."""
_SIZES = 32
"""World sizes that are tried."""


@dataclass(frozen=True)
class Misfit:
    """A case whose mesh does not fit."""

    case: Case
    strategy: Strategy
    batch: BatchSpec
    problem: str
    """Why the case can't run."""
    problem_of: Callable[[Case, Strategy], str | None]
    """Why another case can't."""

    def instead(self, near: Sequence[Mapping[str, int]]) -> str:
        """Which of the meshes *near* fit the whole case, in words; if none does, what else would.

        Empty: the mesh is not what is in the way.
        """
        if fitting := _first(mesh for mesh in near if not self._why_not(mesh)):
            # one with more dimensions is no better than one with fewer
            alike = [mesh for mesh in fitting if len(mesh) == len(fitting[0])]
            return f"mesh: {' or '.join(map(meshes.text, alike))} would fit"
        ranks = self.case.world_size
        if sizes := _first(size for size in _around(ranks) if not self._why_not(None, size)):
            return f"no mesh of {ranks} ranks would fit, but world size {' or '.join(map(str, sizes))} would"
        nearest = next((mesh for mesh in near if self._in(mesh).near_meshes(self.case) is None), near[0])
        why = self._why_not(nearest)
        return "" if why == self.problem else f"no other mesh would fit; mesh: {meshes.text(nearest)}: {why}"

    def _in(self, mesh: Mapping[str, int] | None) -> Strategy:
        """The strategy in *mesh*; None: its own."""
        changes: dict[str, Any] = {} if mesh is None else {"mesh": dict(mesh)}
        strategy: Any = self.strategy
        other: Strategy = replace(strategy, **changes)
        return other

    def _why_not(self, mesh: Mapping[str, int] | None, ranks: int | None = None) -> str | None:
        """Why the case can't run in *mesh* (None: its own), or on that many *ranks*."""
        other, ranks = self._in(mesh), ranks or self.case.world_size
        try:
            batch = self.batch.at(ranks, other.data_ranks(ranks))
        except Indivisible as error:
            return error.reason
        choice = Choice(self.case.strategy.name, to_plain(other))
        case = replace(self.case, strategy=choice, label=other.label, world_size=ranks, batch=batch)
        return self.problem_of(case, other)


def _first(fitting: Iterator[T]) -> list[T]:
    return list(itertools.islice(fitting, _MOST))


def _around(ranks: int) -> list[int]:
    """Numbers near to that of *ranks*."""
    return sorted(range(max(1, ranks - _SIZES), ranks + _SIZES), key=lambda size: abs(size - ranks))
