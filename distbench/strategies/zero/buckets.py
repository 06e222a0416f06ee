"""Buckets of DeepSpeed, which decide the number of its reductions (0.19.8). Imports no torch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from distbench import optimizers
from distbench.core.case import Case
from distbench.strategies.description import UNKNOWN_CALLS, CallCount
from distbench.strategies.theory.gradient_buckets import (
    buckets_up_to,
    buckets_within,
    parameter_elements,
    ready_gradients,
    synchronization_count,
)
from distbench.strategies.zero.config import ModelSizes, sizes_for_model
from distbench.workloads.base import workload_of

if TYPE_CHECKING:
    from distbench.strategies.zero import Zero

ALIGNMENT = 2
"""Elements to a multiple of which stages 1 and 2 pad each partition (``nccl_start_alignment_factor``)."""
_UNSHARDED_BUCKET = 500_000_000
"""Elements beyond which a bucket of full gradients is reduced (``MEMORY_OPT_ALLREDUCE_SIZE``)."""


def known_tensors(strategy: Zero, case: Case, parameters: int | None = None) -> list[int] | None:
    """Elements of each tensor that a rank has, all in one group of the optimizer; None: unknown.

    They are unknown if the workload does not report them, or reports others than *parameters* in all. Ranks
    of ``tp`` and ``pp`` have parts of them, and an optimizer with a companion groups them by kind.
    """
    if strategy.model_parallelism.ranks > 1 or optimizers.entry_of(case.optimizer).companion:
        return None
    elements = parameter_elements(case)
    is_other = elements is not None and parameters is not None and sum(elements) != parameters
    return None if is_other else elements


def reductions(strategy: Zero, case: Case, *, are_full: bool) -> CallCount:
    """Reductions of gradients in a step.

    Args:
        are_full: Stage 1 reduces as stage 0 does (BF16_Optimizer).
    """
    elements, size = known_tensors(strategy, case), bucket_size(strategy, case)
    if elements is None or size is None or strategy.quantized_gradients or strategy.mics_shard_size > 1:
        # quantized gradients are exchanged in all-to-alls, and those of MiCS in two hops
        return UNKNOWN_CALLS
    if strategy.stage == 0 or are_full:
        return CallCount(len(buckets_up_to(elements, (_UNSHARDED_BUCKET + 1,))), 1)
    more = _split_reductions(strategy, case, elements, size) if strategy.stage < 3 else 0
    if more is None:
        return UNKNOWN_CALLS
    if strategy.stage == 1 and not strategy.overlap_comm:
        # after the backward pass, one after another
        return CallCount(len(buckets_within(elements, size)) + more, 1)
    gradients = ready_gradients(case)
    if gradients is None:
        return UNKNOWN_CALLS
    buckets = buckets_within([each.elements for each in gradients], size)
    # a bucket is reduced when the first gradient of the next one is ready, the last one at the end
    starts = list(itertools.accumulate(map(len, buckets)))
    synchronizations = synchronization_count(gradients, [*starts[:-1], len(gradients) - 1])
    times = case.batch.gradient_accumulation_steps if strategy.stage > 1 else 1
    return CallCount(
        times * (len(buckets) + more), None if synchronizations is None else times * synchronizations
    )


def bucket_size(strategy: Zero, case: Case) -> int | None:
    """Elements of a bucket of gradients; None: unknown without the model."""
    sizes = model_sizes(case)
    return None if sizes is None else sizes_for_model(strategy, sizes)["reduce_bucket_size"]


def model_sizes(case: Case) -> ModelSizes | None:
    """Sizes from which DeepSpeed's own are chosen; None: unknown without the model."""
    elements, model = parameter_elements(case), workload_of(case).layer_shapes()
    if not elements or model is None:
        return None
    largest = max(elements)
    layers = (sum(map(math.prod, layer)) for layer in model.layers)
    return ModelSizes(sum(elements), max(layers, default=largest), largest)


def _split_reductions(strategy: Zero, case: Case, elements: Sequence[int], size: int) -> int | None:
    """Reductions of stages 1 and 2 beyond one for each bucket of *size* elements; None: unknown.

    A tensor larger than a bucket is a bucket of its own. It is reduced by the partitions that it spans, in
    parts that are closed once they exceed the size of a bucket.
    """
    if max(elements) <= size or not (strategy.contiguous_gradients or strategy.offloads):
        return 0
    if strategy.round_robin_gradients:
        # tensors are dealt out in another order
        return None
    ranks = strategy.data_parallel_size(case.world_size)
    partition = partition_elements(sum(elements), ranks)
    more = 0
    for end, own in zip(itertools.accumulate(elements), elements, strict=True):
        if own > size:
            cuts = [end - own, *range(partition * ((end - own) // partition + 1), end, partition), end]
            parts = [after - before for before, after in itertools.pairwise(cuts)]
            more += len(buckets_up_to(parts, (size + 1,))) - 1
    return more


def padded_parameters(strategy: Zero, case: Case, parameters: int, ranks: int) -> int:
    """The *parameters* of *case* with the padding of *ranks* shards, as far as it is known."""
    elements = known_tensors(strategy, case, parameters)
    if strategy.stage == 0 or elements is None:
        return parameters
    if strategy.stage < 3:
        return ranks * partition_elements(parameters, ranks)
    # each tensor is sharded by itself
    return ranks * sum(-(-size // ranks) for size in elements)


def kept_gradients(strategy: Zero, case: Case, parameters: int, ranks: int) -> int | None:
    """Elements of the gradients of the rank with most of them in stages 1 and 2, if partitions share tensors.

    A rank keeps the full gradient of each tensor of which its partition has a part. None: unknown.
    """
    elements = known_tensors(strategy, case, parameters)
    if elements is None or strategy.round_robin_gradients:
        return None
    partition, more = partition_elements(parameters, ranks), [0] * (ranks + 1)
    for end, own in zip(itertools.accumulate(elements), elements, strict=True):
        more[(end - own) // partition] += own
        more[(end - 1) // partition + 1] -= own
    return max(itertools.accumulate(more))


def partition_elements(parameters: int, ranks: int) -> int:
    """Elements of a rank's partition of *parameters* in stages 1 and 2, with its padding."""
    return -(-parameters // (ALIGNMENT * ranks)) * ALIGNMENT
