"""Meshes of FSDP, and options that it refuses. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from distbench.core import meshes
from distbench.core.case import Case
from distbench.core.machine import Machine
from distbench.core.meshes import MeshShape
from distbench.strategies._pipeline import nearest_text

if TYPE_CHECKING:
    from distbench.strategies.fsdp import FullyShardedDataParallel

MeshDimension = Literal["dp_replicate", "dp_shard", "tp"]
DIMENSIONS: tuple[MeshDimension, ...] = ("dp_replicate", "dp_shard", "tp")
REST_DIMENSION: MeshDimension = "dp_shard"
"""Dimension with the ranks that remain after the others."""


def device_mesh(strategy: FullyShardedDataParallel, ranks: int) -> MeshShape:
    """The mesh of *ranks* ranks: those left by the other dimensions shard the parameters."""
    asked: dict[str, int] = {**strategy.requested_mesh}
    if strategy.sharding == "hybrid":
        of_data, shards = strategy.data_parallel_size(ranks), strategy.shards
        asked["dp_replicate"] = strategy.replicas if shards is None else max(1, of_data // shards)
    return MeshShape.from_request(asked, ranks, REST_DIMENSION)


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


def _complexity(mesh: Mapping[str, int]) -> tuple[int, ...]:
    return sum(size > 1 for size in mesh.values()), mesh["tp"], mesh["dp_replicate"]


def replica_label(strategy: FullyShardedDataParallel) -> str:
    """Part of the label for the replicas in the mesh: ``-hybrid2``, or ``-hybrid2x4`` of 4 shards each."""
    copies, shards = (strategy.requested_mesh.get(name) for name in ("dp_replicate", "dp_shard"))
    if copies:
        return f"-hybrid{copies}" + (f"x{shards}" if shards else "")
    return ""


def mesh_problem(strategy: FullyShardedDataParallel, case: Case) -> str | None:
    """Reason why *case* can't be trained in the mesh of *strategy*; None if it can."""
    sizes, over = strategy.requested_mesh, strategy.tensor_parallelism
    if over.ranks == 1 and (over.sequence_parallel or over.loss_parallel):
        option = "sequence_parallel" if over.sequence_parallel else "loss_parallel"
        return f"{option} needs tensor parallelism; set mesh: {{tp: 2}}"
    if not sizes:
        return None
    if strategy.version == 1:
        return "mesh needs FSDP2; set version: 2"
    if over.ranks > 1 and strategy.cpu_offload:
        return f"mesh: {{tp: {over.ranks}}} does not support offload; set cpu_offload: false"
    if strategy.sharding == "hybrid" and {"dp_replicate", "dp_shard"} & {*sizes}:
        return (
            "sharding: hybrid and mesh: {dp_replicate, dp_shard} configure the same groups; remove "
            "sharding: hybrid"
        )
    if reason := meshes.mesh_size_problem(sizes, case.world_size, REST_DIMENSION):
        return reason
    return over.problem(case) if over.ranks > 1 else None


def group_problem(strategy: FullyShardedDataParallel, world_size: int, machine: Machine) -> str | None:
    """Reason why *world_size* ranks can't form the groups of a hybrid shard; None if they can."""
    name, size = ("replicas", strategy.replicas) if strategy.shards is None else ("shards", strategy.shards)
    ranks, of_one = strategy.data_parallel_size(world_size), machine.devices // machine.nodes
    if ranks < 2:
        return "hybrid sharding needs at least 2 ranks"
    if ranks % size:
        what = "number of data-parallel ranks" if strategy.requested_mesh else "world size"
        least = 2 if strategy.version == 1 else 1
        pairs = [(each, ranks // each) for each in range(1, ranks + 1) if ranks % each == 0]
        fitting = [each for each, other in pairs if (each if name == "shards" else other) >= least]
        return (
            f"hybrid sharding needs a {what} divisible by {name}: {ranks} ranks, {name} = {size}; nearest "
            f"values that fit: {nearest_text(fitting, size)}"
        )
    shards = device_mesh(strategy, world_size).size("dp_shard")
    together = shards * strategy.tensor_parallelism.ranks
    if strategy.version == 1 and shards < 2:
        # it falls back to NO_SHARD inside groups of one rank and never reduces across them
        return (
            "version: 1 with sharding: hybrid needs at least 2 ranks per group, because FSDP1 does not "
            "synchronise replicas of groups with 1 rank; use version: 2, or fewer replicas"
        )
    if strategy.shards is None and world_size > of_one and of_one % together and machine.nodes > 1:
        inside = max(1, shards * of_one // together)
        return (
            f"replicas = {strategy.replicas} makes groups of {together} ranks, but nodes have {of_one} "
            f"devices, so all-gathers would cross nodes; set shards: {inside}, or shards: {shards} to "
            "allow it"
        )
    return None
