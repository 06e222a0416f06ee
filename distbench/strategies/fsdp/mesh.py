"""Meshes of FSDP. Imports no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from distbench.core import meshes

if TYPE_CHECKING:
    from distbench.strategies.fsdp import FullyShardedDataParallel

MeshDimension = Literal["dp_replicate", "dp_shard", "tp"]
DIMENSIONS: tuple[MeshDimension, ...] = ("dp_replicate", "dp_shard", "tp")
REST_DIMENSION: MeshDimension = "dp_shard"
"""Dimension with the ranks that remain after the others."""


def hybrid_sizes(strategy: FullyShardedDataParallel, ranks: int) -> dict[str, int]:
    """Sizes of the mesh of *ranks* ranks that follow from ``sharding: hybrid``."""
    if strategy.sharding != "hybrid":
        return {}
    of_data = ranks // strategy.tensor_parallelism.ranks
    replicas = strategy.replicas if strategy.shards is None else max(1, of_data // strategy.shards)
    return {"dp_replicate": replicas}


def all_meshes(ranks: int) -> list[dict[MeshDimension, int]]:
    """All meshes of *ranks* ranks in which more than one rank shards the parameters, simplest first.

    Other meshes belong to other strategies: ddp, and tp.
    """
    every_mesh = sorted(meshes.all_factorizations(ranks, DIMENSIONS), key=_complexity)
    shared = [mesh for mesh in every_mesh if mesh["dp_shard"] > 1] or every_mesh[:1]
    # explicit sizes are part of a case's id, so sizes that follow from others are left out
    return [
        {name: mesh[name] for name in DIMENSIONS if name != REST_DIMENSION and mesh[name] > 1}
        for mesh in shared
    ]


def canonical_mesh(strategy: FullyShardedDataParallel, ranks: int) -> FullyShardedDataParallel:
    """Return *strategy* with its groups of *ranks* ranks given in one way of several.

    FSDP2 has a mesh without the dimension of the rest; FSDP1, which has no mesh, has ``replicas``.
    """
    sizes = strategy.mesh_sizes(ranks)
    if strategy.version == 1:
        replicas = sizes.get("dp_replicate", strategy.replicas)
        return dataclasses.replace(strategy, replicas=replicas, shards=None)
    mesh = {name: sizes[name] for name in DIMENSIONS if name != REST_DIMENSION and sizes.get(name, 1) > 1}
    sharding = "full" if strategy.sharding == "hybrid" else strategy.sharding
    return dataclasses.replace(strategy, sharding=sharding, mesh=mesh, replicas=2, shards=None)


def _complexity(mesh: Mapping[str, int]) -> tuple[int, ...]:
    return sum(size > 1 for size in mesh.values()), mesh["tp"], mesh["dp_replicate"]


def replica_label(strategy: FullyShardedDataParallel) -> str:
    """Part of the label for the replicas in the mesh: ``-hybrid2``, or ``-hybrid2x4`` of 4 shards each."""
    copies, shards = (strategy.requested_mesh.get(name) for name in ("dp_replicate", "dp_shard"))
    if copies:
        return f"-hybrid{copies}" + (f"x{shards}" if shards else "")
    return ""
