"""Mesh dimensions inside each pipeline rank: names, and what is refused. Without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from distbench.core import meshes
from distbench.core.case import Case
from distbench.strategies._offers import reduced_otherwise, unfused
from distbench.strategies.pp.schedules import WHOLE_BACKWARD

if TYPE_CHECKING:
    from distbench.strategies.pp import PipelineParallel
    from distbench.workloads.stages import Stages

Dimension = Literal["dp_replicate", "dp_shard", "tp"]
Name = Literal["pp", "dp_replicate", "dp_shard", "tp"]
INSIDE: tuple[Dimension, ...] = ("dp_replicate", "dp_shard", "tp")
"""Outermost first."""


def every(ranks: int) -> list[dict[Name, int]]:
    """All meshes of that many *ranks* with several stages, those of the fewest dimensions first.

    The pipeline gets the rest of the ranks, and is not named.
    """
    several = [mesh for mesh in meshes.every(ranks, ("pp", *INSIDE)) if mesh["pp"] > 1]
    inside: list[dict[Name, int]] = [
        {name: mesh[name] for name in INSIDE if mesh[name] > 1} for mesh in several
    ]
    # one rank has none: the pipeline alone says why
    return sorted(inside, key=len) or [{}]


def near(strategy: PipelineParallel, model: Stages, ranks: int) -> list[dict[str, int]] | None:
    """See ``Strategy.near_meshes``; a mesh of one stage, or of more than there are layers, does not fit."""
    stages = strategy.sizes(ranks).size("pp")
    is_filled = meshes.problem(strategy.asked, ranks, "pp") is None
    if ranks < 2 or (is_filled and 2 <= stages <= len(model.layers) // strategy.per_rank):
        return None
    return meshes.near(strategy.asked, ranks, "pp", ("pp", *INSIDE))


def labels(strategy: PipelineParallel) -> list[str]:
    """What the label of *strategy* says of its mesh, by the names that the techniques have alone."""
    copies, shards, parts = (strategy.asked.get(name, 1) for name in INSIDE)
    said = []
    if copies > 1 and shards > 1:
        said.append(f"hsdp{copies}x{shards}")
    elif copies > 1 or shards > 1:
        said.append(f"ddp{copies}" if copies > 1 else f"fsdp{shards}")
    if parts > 1:
        said += [f"tp{parts}", *strategy.tensor_parallelism.suffixes]
    return [*said, *(["reshard"] if strategy.reshard_after_forward else [])]


def mesh_problem(strategy: PipelineParallel, case: Case) -> str | None:
    """Why *case* can't be trained in the mesh of *strategy*, or None if it can."""
    if reason := meshes.problem(strategy.asked, case.world_size, "pp"):
        return reason
    copies, shards, parts = (strategy.asked.get(name, 1) for name in INSIDE)
    if parts == 1 and (strategy.sequence_parallel or strategy.loss_parallel):
        option = "sequence_parallel" if strategy.sequence_parallel else "loss_parallel"
        return f"{option} needs tensor parallelism; set mesh: {{tp: 2}}"
    if shards == 1 and strategy.reshard_after_forward:
        return "reshard_after_forward needs sharded stages; set mesh: {dp_shard: 2}"
    if copies > 1 and shards == 1 and (reason := _ddp_problem(strategy, case)):
        return reason
    if shards > 1 and (reason := _fsdp_problem(strategy, case)):
        return reason
    return strategy.tensor_parallelism.problem(case) if parts > 1 else None


def _ddp_problem(strategy: PipelineParallel, case: Case) -> str | None:
    said = f"mesh: {meshes.text(strategy.asked)}"
    if strategy.asked.get("tp", 1) > 1:
        return f"{said}: DDP does not support tensor-parallel layers; use dp_shard instead of dp_replicate"
    if strategy.order.splits_backward:
        return (
            f"{said}: DDP reduces a gradient when autograd accumulates it, but {strategy.schedule} "
            "accumulates weight gradients itself; use dp_shard instead of dp_replicate, or the schedule "
            f"{WHOLE_BACKWARD}"
        )
    return reduced_otherwise(case, f"{said}: DDP around stages", "dp_shard instead of dp_replicate")


def _fsdp_problem(strategy: PipelineParallel, case: Case) -> str | None:
    if strategy.reshard_after_forward and strategy.order.splits_backward:
        return (
            f"reshard_after_forward with the schedule {strategy.schedule}: weight gradients are computed "
            "after their layer has been resharded, and torch loses them without an error; use "
            f"reshard_after_forward: false, or the schedule {WHOLE_BACKWARD}"
        )
    return unfused(case)
