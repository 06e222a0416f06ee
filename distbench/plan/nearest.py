"""Suggest meshes or world sizes that would fit."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from distbench.core import meshes
from distbench.core.case import Case, PluginChoice
from distbench.strategies.base import Strategy
from distbench.suite.batch import BatchConfig, IndivisibleBatchError
from distbench.suite.sections import to_json_dict

T = TypeVar("T")

_MAX_SUGGESTIONS = 2
"""Maximum number of suggested alternatives."""
_MAX_DISTANCE = 32
"""Maximum distance of world sizes that are tried."""


@dataclass(frozen=True)
class MeshAlternatives:
    """Alternatives for a case whose mesh does not fit."""

    case: Case
    strategy: Strategy
    batch: BatchConfig
    problem: str
    """Reason why the case can't run."""
    find_problem: Callable[[Case, Strategy], str | None]
    """Returns the reason why another case can't run."""

    def suggest(self, near: Sequence[Mapping[str, int]]) -> str:
        """Describe which of the meshes *near* fit the whole case, or else which world sizes would.

        Empty: the mesh is not the problem.
        """
        if fitting := _take(mesh for mesh in near if not self._problem_with(mesh)):
            # one with more dimensions is no better than one with fewer
            alike = [mesh for mesh in fitting if len(mesh) == len(fitting[0])]
            return f"mesh: {' or '.join(map(meshes.mesh_text, alike))} would fit"
        ranks = self.case.world_size
        if sizes := _take(size for size in _nearby_sizes(ranks) if not self._problem_with(None, size)):
            return f"no mesh of {ranks} ranks would fit, but world size {' or '.join(map(str, sizes))} would"
        nearest = next(
            (mesh for mesh in near if self._with_mesh(mesh).nearest_meshes(self.case) is None), near[0]
        )
        why = self._problem_with(nearest)
        return (
            ""
            if why == self.problem
            else f"no other mesh would fit; mesh: {meshes.mesh_text(nearest)}: {why}"
        )

    def _with_mesh(self, mesh: Mapping[str, int] | None) -> Strategy:
        """The strategy in *mesh*; None: its own mesh."""
        changes: dict[str, Any] = {} if mesh is None else {"mesh": dict(mesh)}
        strategy: Any = self.strategy
        other: Strategy = replace(strategy, **changes)
        return other

    def _problem_with(self, mesh: Mapping[str, int] | None, ranks: int | None = None) -> str | None:
        """Reason why the case can't run in *mesh* (None: its own), or on *ranks*; None if it can."""
        other, ranks = self._with_mesh(mesh), ranks or self.case.world_size
        try:
            batch = self.batch.divide(ranks, other.data_parallel_size(ranks))
        except IndivisibleBatchError as error:
            return error.reason
        choice = PluginChoice(self.case.strategy.name, to_json_dict(other))
        case = replace(self.case, strategy=choice, label=other.label, world_size=ranks, batch=batch)
        return self.find_problem(case, other)


def _take(fitting: Iterator[T]) -> list[T]:
    return list(itertools.islice(fitting, _MAX_SUGGESTIONS))


def _nearby_sizes(ranks: int) -> list[int]:
    """List world sizes around *ranks*, nearest first."""
    return sorted(
        range(max(1, ranks - _MAX_DISTANCE), ranks + _MAX_DISTANCE), key=lambda size: abs(size - ranks)
    )
