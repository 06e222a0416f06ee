"""Models that can't be split into stages, and micro-batches that can't be split. Imports no torch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from distbench.core import meshes
from distbench.core.units import format_count
from distbench.strategies.pp.schedules import UNSPLIT_BACKWARD, valid_micro_batches
from distbench.strategies.requirements import nearest_text
from distbench.strategies.theory.pipeline_parallelism import too_many_stages_text

if TYPE_CHECKING:
    from distbench.core.case import Case
    from distbench.strategies.pp import PipelineParallel
    from distbench.workloads.stages import PipelineStages


def stage_problem(strategy: PipelineParallel, model: PipelineStages, ranks: int) -> str | None:
    """Reason why *model* can't be split into the stages of *strategy* on *ranks*; None if it can."""
    allowed, schedule = strategy.schedule_rules.stages_per_rank, strategy.schedule
    if ranks < 2:
        inside = math.prod(size for name, size in strategy.requested_mesh.items() if name != "pp")
        if inside == 1:
            return "a pipeline needs at least 2 ranks; use single, or a larger world size"
        return (
            "a pipeline needs at least 2 ranks in addition to mesh: "
            f"{meshes.mesh_text(strategy.requested_mesh)}; use a world size of at least {2 * inside}"
        )
    if strategy.stages_on_rank not in allowed:
        least = f"at least {allowed.start}" if len(allowed) > 1 else f"exactly {allowed.start}"
        return (
            f"stages_per_rank = {strategy.stages_on_rank}, but the schedule {schedule} needs {least}; "
            f"set stages_per_rank: {allowed.start}, or remove it"
        )
    stages, layers = ranks * strategy.stages_on_rank, len(model.layer_parameters)
    if layers >= stages:
        return None
    fewer = _smaller_pipeline_text(strategy, layers // strategy.stages_on_rank)
    return (
        f"{too_many_stages_text(layers, stages)} ({ranks} ranks x {strategy.stages_on_rank} per rank); use "
        f"{fewer}a model of at least {stages} layers"
    )


def _smaller_pipeline_text(strategy: PipelineParallel, max_ranks: int) -> str:
    """Advice for a pipeline of *max_ranks* ranks; empty: that would be no pipeline."""
    if max_ranks < 2:
        return ""
    if "pp" in strategy.requested_mesh:
        return f"at most pp: {max_ranks}, or "
    # each pipeline rank is a group of all ranks of the other dimensions
    return f"a world size of at most {max_ranks * math.prod(strategy.requested_mesh.values())}, or "


def recomputation_problem(strategy: PipelineParallel, case: Case) -> str | None:
    """Reason why the layers of *case* can't be recomputed in its backward passes; None if they can."""
    if case.activation_checkpointing == "none" or not strategy.schedule_rules.splits_backward:
        return None
    why = "and torch recomputes a layer for each of them"
    if case.activation_checkpointing == "selective":
        why = "but torch allows only one backward pass through a selectively checkpointed layer"
    return (
        f"activation_checkpointing: {case.activation_checkpointing} with the schedule {strategy.schedule}, "
        f"which computes weight gradients one by one, {why}; use activation_checkpointing: none, or the "
        f"schedule {UNSPLIT_BACKWARD}"
    )


def micro_batch_problem(strategy: PipelineParallel, samples: int, ranks: int) -> str | None:
    """Reason why *samples* samples can't be split for the pipeline on *ranks*; None if they can."""
    number = strategy.micro_batches
    unfit = strategy.schedule_rules.micro_batch_problem(number, ranks, strategy.stages_on_rank)
    if not unfit and samples % number == 0:
        return None
    reason = unfit and f"the schedule {strategy.schedule} {unfit}"
    reason = reason or f"it does not divide batch.micro_batch_size = {samples}"
    near = nearest_text(
        valid_micro_batches(strategy.schedule, samples, ranks, strategy.stages_on_rank), number
    )
    of = f"a micro-batch of {format_count(samples, 'sample')}"
    if near:
        return f"micro_batches = {number}: {reason}; nearest values that fit {of}: {near}"
    stages = ranks * strategy.stages_on_rank
    return (
        f"micro_batches = {number}: {reason}; {of} is too small; use micro_batches: {stages} and "
        f"batch.micro_batch_size: {stages} or a multiple of it"
    )
