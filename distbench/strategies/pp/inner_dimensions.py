"""Mesh dimensions inside each pipeline rank: names and limits. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from distbench.core import meshes
from distbench.core.case import Case
from distbench.strategies.pp.schedules import UNSPLIT_BACKWARD
from distbench.strategies.requirements import fused_sgd_problem, reduce_dtype_problem

if TYPE_CHECKING:
    from distbench.strategies.pp import PipelineParallel
    from distbench.workloads.stages import PipelineStages

InnerDimension = Literal["dp_replicate", "dp_shard", "tp"]
MeshDimension = Literal["pp", "dp_replicate", "dp_shard", "tp"]
INNER_DIMENSIONS: tuple[InnerDimension, ...] = ("dp_replicate", "dp_shard", "tp")
"""Dimensions inside a pipeline rank, outermost first."""


def all_meshes(ranks: int) -> list[dict[MeshDimension, int]]:
    """All meshes of *ranks* ranks with several stages, fewest dimensions first.

    The pipeline gets the remaining ranks, and is not named.
    """
    several = [mesh for mesh in meshes.all_factorizations(ranks, ("pp", *INNER_DIMENSIONS)) if mesh["pp"] > 1]
    inside: list[dict[MeshDimension, int]] = [
        {name: mesh[name] for name in INNER_DIMENSIONS if mesh[name] > 1} for mesh in several
    ]
    # one rank has none: the pipeline itself gives the reason
    return sorted(inside, key=len) or [{}]


def nearest_meshes(
    strategy: PipelineParallel, model: PipelineStages, ranks: int
) -> list[dict[str, int]] | None:
    """Meshes as ``Strategy.nearest_meshes`` returns them.

    A mesh of one stage, or of more stages than layers, doesn't fit.
    """
    stages = strategy.device_mesh(ranks).size("pp")
    is_filled = strategy.mesh_size_problem(ranks) is None
    if ranks < 2 or (is_filled and 2 <= stages <= len(model.layer_parameters) // strategy.stages_on_rank):
        return None
    return meshes.similar_meshes(strategy.requested_mesh, ranks, "pp", ("pp", *INNER_DIMENSIONS))


def label_parts(strategy: PipelineParallel) -> list[str]:
    """Parts of the label of *strategy* for its mesh, named like the techniques on their own."""
    copies, shards, parts = (strategy.requested_mesh.get(name, 1) for name in INNER_DIMENSIONS)
    parts_of_label = []
    if copies > 1 and shards > 1:
        parts_of_label.append(f"hsdp{copies}x{shards}")
    elif copies > 1 or shards > 1:
        parts_of_label.append(f"ddp{copies}" if copies > 1 else f"fsdp{shards}")
    if parts > 1:
        parts_of_label += [f"tp{parts}", *strategy.tensor_parallelism.label_parts]
    return [*parts_of_label, *(["reshard"] if strategy.reshard_after_forward else [])]


def mesh_problem(strategy: PipelineParallel, case: Case) -> str | None:
    """Reason why *case* can't be trained in the mesh of *strategy*; None if it can."""
    if reason := strategy.mesh_size_problem(case.world_size):
        return reason
    copies, shards, parts = (strategy.requested_mesh.get(name, 1) for name in INNER_DIMENSIONS)
    if reason := strategy.tensor_parallelism.option_problem:
        return reason
    if shards == 1 and strategy.reshard_after_forward:
        return "reshard_after_forward needs sharded stages; set mesh: {dp_shard: 2}"
    if copies > 1 and shards == 1 and (reason := _ddp_problem(strategy, case)):
        return reason
    if shards > 1 and (reason := _fsdp_problem(strategy, case)):
        return reason
    return strategy.tensor_parallelism.problem(case) if parts > 1 else None


def _ddp_problem(strategy: PipelineParallel, case: Case) -> str | None:
    mesh = f"mesh: {meshes.mesh_text(strategy.requested_mesh)}"
    if strategy.requested_mesh.get("tp", 1) > 1:
        return f"{mesh}: DDP does not support tensor-parallel layers; use dp_shard instead of dp_replicate"
    if strategy.schedule_rules.splits_backward:
        return (
            f"{mesh}: {strategy.schedule} accumulates weight gradients outside autograd, where DDP does "
            f"not reduce them; use dp_shard instead of dp_replicate, or the schedule {UNSPLIT_BACKWARD}"
        )
    return reduce_dtype_problem(case, f"{mesh}: DDP around stages", "dp_shard instead of dp_replicate")


def _fsdp_problem(strategy: PipelineParallel, case: Case) -> str | None:
    if strategy.reshard_after_forward and strategy.schedule_rules.splits_backward:
        return (
            f"reshard_after_forward with the schedule {strategy.schedule}: weight gradients are computed "
            "after their layer has been resharded, and torch loses them without an error; use "
            f"reshard_after_forward: false, or the schedule {UNSPLIT_BACKWARD}"
        )
    return fused_sgd_problem(case)
