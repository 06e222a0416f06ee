"""Traffic and model states of ZeRO. Imports no torch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from distbench.core.case import Case
from distbench.core.dtypes import DTYPE_BYTES
from distbench.strategies.description import UNKNOWN_CALLS, CallCount, ExpectedCollective
from distbench.strategies.theory.data_parallelism import ZERO_STAGES
from distbench.strategies.zero import buckets, gathers

if TYPE_CHECKING:
    from distbench.strategies.zero import Zero


def zero_traffic(strategy: Zero, case: Case, parameters: int) -> list[ExpectedCollective]:
    """Collectives of a rank in a step; see ``Strategy.traffic``.

    Rajbhandari et al. 2020 (arXiv:1910.02054), section 7: 2 Psi up to stage 2, 3 Psi in stage 3; from stage 2
    on gradients are stored in shards and therefore reduced after every micro-batch. hpZ (arXiv:2306.10209,
    section 3.2) gathers equally often, but inside its groups except for the first time in a step. Stages 1
    and 2 of DeepSpeed all-reduce what the paper reduce-scatters.
    """
    over, ranks = strategy.model_parallelism, strategy.data_parallel_size(case.world_size)
    between = over.traffic(case, case.batch.global_batch_size // ranks)
    if strategy.pipeline:
        own = strategy.grad_accum_dtype if reduces_full_gradients(strategy, case) else case.precision.compute
        between += strategy.pipeline.tied_weight_traffic(case, own)
    level, parameters = ZERO_STAGES[strategy.stage], over.parameters_per_rank(case, parameters)
    are_full = reduces_full_gradients(strategy, case)
    if are_full:
        level = replace(level, reduce_op="all_reduce")
    shards, replicas = (ranks, 1) if strategy.stage else (1, ranks)
    gathered, gather_calls = None, UNKNOWN_CALLS
    reductions = buckets.reductions(strategy, case, are_full=are_full)
    stage_3 = gathers.gathers(strategy, case, parameters) if strategy.stage == 3 else None
    if stage_3:
        gathered, gather_calls = stage_3.gathered, CallCount(stage_3.calls, stage_3.synchronizations)
        reductions = replace(reductions, synchronizations=stage_3.reduction_synchronizations)
    elif strategy.stage in (1, 2) and buckets.known_tensors(strategy, case):
        # after an update, all partitions of a group at once, whatever allgather_bucket_size is
        gathered = buckets.padded_parameters(strategy, case, parameters, ranks)
        gather_calls = CallCount(1, synchronizations=0)
    elif strategy.stage == 3:
        # those of the gathers in between are unknown
        reductions = replace(reductions, synchronizations=None)
    moved = level.traffic(
        case,
        parameters,
        shards=shards,
        replicas=replicas,
        gathered=gathered,
        gathers=gather_calls,
        reductions=reductions,
    )
    if strategy.stage in (1, 2):
        moved = [replace(one, issued_as="all_reduce") if one.op == "reduce_scatter" else one for one in moved]
    if stage_3:
        still_bytes = float(stage_3.still_gathered * DTYPE_BYTES[case.precision.compute])
        moved = [
            replace(one, still_gathered_bytes=still_bytes) if one.op == "all_gather" else one for one in moved
        ]
    return [*moved, *_mics_traffic(strategy, case, parameters), *between]


def _mics_traffic(strategy: Zero, case: Case, parameters: float) -> list[ExpectedCollective]:
    """Collectives between groups of MiCS, for *parameters* parameters in all.

    Zhang et al. 2022 (arXiv:2205.00119), "2-hop gradient synchronization": shards of gradients, only after
    the last micro-batch, in the dtype in which DeepSpeed accumulates them.
    """
    size = strategy.mics_shard_size
    if not 1 < size < case.world_size:
        return []
    dtype = strategy.grad_accum_dtype if strategy.accumulates_in_other_dtype(case) else case.precision.compute
    return [ExpectedCollective("all_reduce", parameters * DTYPE_BYTES[dtype] / size, "dp_replicate")]


def reduces_full_gradients(strategy: Zero, case: Case) -> bool:
    """True if DeepSpeed trains *case* with BF16_Optimizer, a stage 1 that all-reduces full gradients."""
    is_apart = case.precision.compute == "bf16" and strategy.accumulates_in_other_dtype(case)
    return strategy.stage == 1 and is_apart and strategy.offload_optimizer == "none"


def zero_model_states(strategy: Zero, case: Case, parameters: int) -> dict[str, float]:
    """Bytes of a rank's model states that are not on a disk, by kind; see ``Strategy.model_states``."""
    stage, stored = strategy.stage, case.precision.compute
    in_groups = strategy.mics_shard_size > 1
    ranks = strategy.mics_shard_size if in_groups else strategy.data_parallel_size(case.world_size)
    whole = strategy.model_parallelism.max_parameters(case, parameters)
    parameters = buckets.padded_parameters(strategy, case, whole, ranks)
    accumulates = case.batch.gradient_accumulation_steps > 1 or strategy.pipeline is not None
    # stage 1 keeps full gradients only for accumulation; the paper's always does
    level = ZERO_STAGES[2 if stage == 1 and not accumulates else stage]
    sizes = level.model_states(
        case,
        parameters,
        ranks,
        stored=stored,
        gradients=strategy.grad_accum_dtype if strategy.accumulates_in_other_dtype(case) else stored,
        # from stage 1 on DeepSpeed keeps master weights even if they have the same dtype
        master=case.precision.master if stage or stored != case.precision.master else None,
    )
    if reduces_full_gradients(strategy, case):
        # a full buffer for the sum, beside the gradients that the backward pass creates
        summed = DTYPE_BYTES[strategy.grad_accum_dtype] + DTYPE_BYTES[stored]
        sizes["gradients"] = float(parameters * summed)
    elif level is ZERO_STAGES[2] and not strategy.accumulates_in_other_dtype(case) and not strategy.offloads:
        kept = buckets.kept_gradients(strategy, case, whole, ranks)
        sizes["gradients"] = sizes["gradients"] if kept is None else float(kept * DTYPE_BYTES[stored])
    if strategy.hpz_partition_size > 1:
        # the secondary copy, which exists from the first use of a layer in a step to the update
        sizes["parameters"] += parameters * DTYPE_BYTES[stored] / strategy.hpz_partition_size
    if strategy.offload_optimizer != "none":
        # the CPU's optimizer has its own gradients, into which stages 1 and 2 receive them
        received = sizes["gradients"] if stage == 3 or accumulates else 0.0
        sizes["gradients"] = received + parameters * DTYPE_BYTES[case.precision.master] / ranks
    return sizes
