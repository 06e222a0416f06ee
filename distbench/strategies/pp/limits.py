"""Why a model can't be split into pipeline stages, or a micro-batch into parts. Without torch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from distbench.core import meshes
from distbench.core.units import count_text
from distbench.strategies._pipeline import nearest, too_many_stages
from distbench.strategies.pp.schedules import WHOLE_BACKWARD, fitting

if TYPE_CHECKING:
    from distbench.core.case import Case
    from distbench.strategies.pp import PipelineParallel
    from distbench.workloads.stages import Stages


def stage_problem(strategy: PipelineParallel, model: Stages, ranks: int) -> str | None:
    """Why the stages of *strategy* can't be made of *model* on *ranks*, or None."""
    allowed, schedule = strategy.order.per_rank, strategy.schedule
    if ranks < 2:
        inside = math.prod(size for name, size in strategy.asked.items() if name != "pp")
        if inside == 1:
            return "a pipeline needs at least 2 ranks; use single, or a larger world size"
        return (
            f"a pipeline needs at least 2 ranks in addition to mesh: {meshes.text(strategy.asked)}; use a "
            f"world size of at least {2 * inside}"
        )
    if strategy.per_rank not in allowed:
        least = f"at least {allowed.start}" if len(allowed) > 1 else f"exactly {allowed.start}"
        return (
            f"stages_per_rank = {strategy.per_rank}, but the schedule {schedule} needs {least}; set "
            f"stages_per_rank: {allowed.start}, or leave it out"
        )
    stages, layers = ranks * strategy.per_rank, len(model.layers)
    if layers >= stages:
        return None
    fewer = _fewer_ranks(strategy, layers // strategy.per_rank)
    return (
        f"{too_many_stages(layers, stages)} ({ranks} ranks x {strategy.per_rank} per rank); use {fewer}a "
        f"model of at least {stages} layers"
    )


def _fewer_ranks(strategy: PipelineParallel, most: int) -> str:
    """What to use for a pipeline of *most* ranks, in words; empty: that would be none."""
    if most < 2:
        return ""
    if "pp" in strategy.asked:
        return f"at most pp: {most}, or "
    # each pipeline rank is a group of all ranks of the other dimensions
    return f"a world size of at most {most * math.prod(strategy.asked.values())}, or "


def recomputation_problem(strategy: PipelineParallel, case: Case) -> str | None:
    """Why the layers of *case* can't be recomputed in its backward passes, or None."""
    if case.activation_checkpointing == "none" or not strategy.order.splits_backward:
        return None
    why = "and torch recomputes a layer for each of them"
    if case.activation_checkpointing == "selective":
        why = "but torch allows only one backward pass through a selectively checkpointed layer"
    return (
        f"activation_checkpointing: {case.activation_checkpointing} with the schedule {strategy.schedule}, "
        f"which computes weight gradients one by one, {why}; use activation_checkpointing: none, or the "
        f"schedule {WHOLE_BACKWARD}"
    )


def micro_batch_problem(strategy: PipelineParallel, samples: int, ranks: int) -> str | None:
    """Why a micro-batch of *samples* can't go through the pipeline on *ranks*, or None."""
    number = strategy.micro_batches
    unfit = strategy.order.unfit(number, ranks, strategy.per_rank)
    if not unfit and samples % number == 0:
        return None
    reason = unfit and f"the schedule {strategy.schedule} {unfit}"
    reason = reason or f"it does not divide batch.micro_batch_size = {samples}"
    near = nearest(fitting(strategy.schedule, samples, ranks, strategy.per_rank), number)
    of = f"a micro-batch of {count_text(samples, 'sample')}"
    if near:
        return f"micro_batches = {number}: {reason}; nearest values that fit {of}: {near}"
    stages = ranks * strategy.per_rank
    return (
        f"micro_batches = {number}: {reason}; {of} is too small; use micro_batches: {stages} and "
        f"batch.micro_batch_size: {stages} or a multiple of it"
    )
