"""Base class of strategies with the option ``mesh``. Imports no torch."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, cast

from distbench.core import meshes
from distbench.core.case import Case
from distbench.core.meshes import MESH_DIMENSIONS, MeshShape
from distbench.strategies.base import Strategy


class MeshStrategy(Strategy):
    """A strategy whose option ``mesh`` sets sizes of its device mesh, or requests all meshes (``auto``)."""

    mesh: Mapping[Any, int] | Literal["auto"]
    option_dimensions: ClassVar[tuple[str, ...]]
    """Dimensions that ``mesh`` may set, for the defaults of ``all_meshes`` and ``nearest_meshes``."""

    @property
    @abstractmethod
    def rest_dimension(self) -> str:
        """Dimension of the ranks that remain after the others."""

    @property
    def requested_mesh(self) -> dict[str, int]:
        """Sizes of ``mesh`` for callers that read any dimension by name; for all meshes (``auto``) empty."""
        return {} if self.mesh == "auto" else dict(self.mesh)

    def known_sizes(self, ranks: int) -> Mapping[str, int]:
        """Sizes of the mesh of *ranks* ranks that follow from options; the rest dimension gets the rest."""
        return self.requested_mesh

    def device_mesh(self, ranks: int) -> MeshShape:
        """The mesh of *ranks* ranks."""
        return MeshShape.from_request(self.known_sizes(ranks), ranks, self.rest_dimension)

    def mesh_sizes(self, ranks: int) -> Mapping[str, int]:
        return self.device_mesh(ranks).sizes

    def data_parallel_size(self, ranks: int) -> int:
        # also of ranks that don't fill the mesh, which problem refuses
        return max(1, ranks // self.device_mesh(ranks).model_ranks)

    def data_parallel_rank(self, rank: int, ranks: int) -> int:
        return self.device_mesh(ranks).data_rank(rank)

    def mesh_size_problem(self, ranks: int) -> str | None:
        """Reason why *ranks* ranks don't fill the mesh; None if they do."""
        return meshes.mesh_size_problem(self.requested_mesh, ranks, self.rest_dimension)

    def all_meshes(self, ranks: int) -> Sequence[Mapping[Any, int]]:
        """Values of ``mesh`` that ``auto`` stands for: by default each size of the only dimension."""
        (dimension,) = self.option_dimensions
        return meshes.divisor_meshes(ranks, dimension)

    def mesh_variants(self, ranks: int) -> Sequence[Strategy] | None:
        if self.mesh != "auto":
            return None
        return [dataclasses.replace(cast(Any, self), mesh=mesh) for mesh in self.all_meshes(ranks)]

    def nearest_meshes(self, case: Case) -> Sequence[Mapping[str, int]] | None:
        own = {self.rest_dimension, *self.option_dimensions}
        names = [name for name in MESH_DIMENSIONS if name in own]
        asked, rest = self.requested_mesh, self.rest_dimension
        return meshes.alternatives_if_invalid(asked, case.world_size, rest, names)

    def canonical(self, case: Case) -> Strategy:
        # the rest dimension has the rest of the ranks, whether it is given or not
        sizes = {name: size for name, size in self.requested_mesh.items() if name != self.rest_dimension}
        canonical: Strategy = dataclasses.replace(cast(Any, self), mesh=sizes)
        return canonical

    def mesh_settings(self, ranks: int) -> dict[str, Any]:
        """Sizes of the mesh that ``Engine.effective_settings`` must report."""
        return {f"mesh.{name}": size for name, size in self.mesh_sizes(ranks).items()}

    def drop_dimensions_of_one_rank(self) -> None:
        """Drop dimensions of one rank from ``mesh``, so that a case has the same id with and without them."""
        if self.mesh != "auto":
            rest = self.rest_dimension
            sizes = {name: size for name, size in self.mesh.items() if size > 1 or name == rest}
            object.__setattr__(self, "mesh", sizes)
