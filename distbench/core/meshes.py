"""Device meshes: sizes of dimensions, and coordinates and groups of ranks. Without torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

MESH_DIMENSIONS = ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep")
"""Names of dimensions, outermost first, as in torchtitan: consecutive ranks differ in the last one."""
DATA_DIMENSIONS = ("dp_replicate", "dp_shard")
"""Dimensions whose ranks process different samples with the same part of the model, or replicas of it."""
MODEL_DIMENSIONS = ("pp", "cp", "tp")
"""Dimensions whose ranks process the same samples; those of all others have their own."""


@dataclass(frozen=True)
class MeshShape:
    """Shape of a device mesh: ranks in several dimensions."""

    sizes: Mapping[str, int]
    """Ranks of each dimension, at least 1, outermost first."""

    @classmethod
    def from_request(cls, requested: Mapping[str, int], ranks: int, rest: str) -> MeshShape:
        """The *requested* mesh, whose dimension *rest* gets the *ranks* that the others leave.

        If the mesh has a ``mesh_size_problem``, *rest* gets at least 1.
        """
        others = math.prod(size for name, size in requested.items() if name != rest)
        sizes = {rest: max(1, ranks // others), **requested}
        return cls({name: sizes[name] for name in MESH_DIMENSIONS if name in sizes})

    @property
    def world_size(self) -> int:
        """Number of all ranks."""
        return math.prod(self.sizes.values())

    @property
    def data_ranks(self) -> int:
        """Number of data-parallel ranks: those that process different samples."""
        return self.world_size // self.model_ranks

    @property
    def model_ranks(self) -> int:
        """Number of ranks that process the same samples."""
        return self.size(*MODEL_DIMENSIONS)

    def size(self, *names: str) -> int:
        """Product of the sizes of dimensions *names*; a dimension that the mesh lacks counts as 1."""
        return math.prod(self.sizes.get(name, 1) for name in names)

    def coordinates(self, rank: int) -> dict[str, int]:
        """Coordinate of *rank* in each dimension."""
        places: dict[str, int] = {}
        for name, size in reversed(tuple(self.sizes.items())):
            rank, places[name] = divmod(rank, size)
        return {name: places[name] for name in self.sizes}

    def group_rank(self, rank: int, names: Iterable[str]) -> int:
        """Index of *rank* in its group over the dimensions *names*."""
        place, number = self.coordinates(rank), 0
        for name in names:
            number = number * self.size(name) + place.get(name, 0)
        return number

    def spanned_dimensions(self, ranks: Iterable[int]) -> str | None:
        """Dimensions that a group of *ranks* spans: ``tp``, or several: ``dp_shard x tp``.

        Those in which their coordinates differ. None: the group has one rank, or the mesh is unknown.
        """
        places = [self.coordinates(rank) for rank in ranks]
        names = [name for name in self.sizes if len({place[name] for place in places}) > 1]
        return _joined(names)

    @property
    def dimensions(self) -> str | None:
        """Dimensions of several ranks: ``tp``, or ``dp_shard x tp``; None: there is none."""
        return _joined(name for name, size in self.sizes.items() if size > 1)

    def data_rank(self, rank: int) -> int:
        """Data-parallel rank of *rank*: the index of its part of the samples."""
        return self.group_rank(rank, [name for name in self.sizes if name not in MODEL_DIMENSIONS])

    def random_stream(self, rank: int) -> int:
        """Index of the stream of random numbers (dropout) of *rank*.

        Ranks with other samples, or other positions of them, have other streams. Those of a tensor or
        pipeline group share one: they hold the same activations, or other layers.
        """
        return self.group_rank(rank, [name for name in self.sizes if name not in ("pp", "tp")])


def _joined(dimensions: Iterable[str]) -> str | None:
    return " x ".join(dimensions) or None


def all_factorizations(ranks: int, names: Sequence[str]) -> list[dict[str, int]]:
    """All sizes of the dimensions *names* that multiply to *ranks*, unordered."""
    if len(names) == 1:
        return [{names[0]: ranks}]
    return [
        {names[0]: size, **rest}
        for size in range(1, ranks + 1)
        if ranks % size == 0
        for rest in all_factorizations(ranks // size, names[1:])
    ]


def divisor_meshes(ranks: int, name: str) -> list[dict[str, int]]:
    """Meshes for each size of the dimension *name* that divides *ranks*; all ranks (first) is ``{}``."""
    return [{}, *({name: size} for size in range(2, ranks) if ranks % size == 0)]


def mesh_size_problem(asked: Mapping[str, int], ranks: int, rest: str) -> str | None:
    """Reason why *ranks* don't fit the mesh *asked* for, or None; *rest*: see ``MeshShape.from_request``."""
    product = math.prod(asked.values())
    if product == ranks if rest in asked else ranks % product == 0:
        return None
    made = " x ".join(map(str, asked.values())) + (f" = {product}" if len(asked) > 1 else "")
    if rest in asked:
        wrong, instead = "is not", f"omit {rest} to use the rest of the world size for it"
    else:
        wrong, instead = "does not divide", f"{rest} gets the rest"
    return f"mesh: {mesh_text(asked)}: {made} {wrong} the world size, {ranks}; {instead}"


def mesh_text(asked: Mapping[str, int]) -> str:
    """The mesh *asked* for, as written in a suite."""
    return "{" + ", ".join(f"{name}: {size}" for name, size in asked.items()) + "}"


def alternatives_if_invalid(
    asked: Mapping[str, int], ranks: int, rest: str, names: Sequence[str]
) -> list[dict[str, int]] | None:
    """``similar_meshes`` of the mesh *asked* for, if it has a ``mesh_size_problem``; None: it has none."""
    return similar_meshes(asked, ranks, rest, names) if mesh_size_problem(asked, ranks, rest) else None


def similar_meshes(
    asked: Mapping[str, int], ranks: int, rest: str, names: Sequence[str]
) -> list[dict[str, int]]:
    """Meshes of all *ranks* over the dimensions *names*, the most similar to the one *asked* for first.

    They contain *rest* only if it was asked for, and other dimensions also if those have several ranks.
    """
    every_mesh = (_relevant_dimensions(sizes, asked, rest) for sizes in all_factorizations(ranks, names))
    others = (mesh for mesh in every_mesh if mesh != asked)
    return sorted(others, key=lambda mesh: (_distance(mesh, asked), *mesh.values()))


def _relevant_dimensions(sizes: Mapping[str, int], asked: Mapping[str, int], rest: str) -> dict[str, int]:
    more = {name: size for name, size in sizes.items() if size > 1 and name not in (*asked, rest)}
    return {name: sizes[name] for name in asked} | more


def _distance(mesh: Mapping[str, int], asked: Mapping[str, int]) -> tuple[int, ...]:
    """Sort key of *mesh*: dimensions added to *asked*, differing sizes, sizes of 1, sum of differences.

    A dimension of one rank is not a real one, so meshes with more of these sort later.
    """
    differences = [abs(size - asked.get(name, 1)) for name, size in mesh.items()]
    ones = list(mesh.values()).count(1)
    return len(mesh) - len(asked), sum(map(bool, differences)), ones, sum(differences)
