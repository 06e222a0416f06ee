"""Kinds of limits of a step: from which share on each counts, and what to try next, in keys of a suite."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Limit = Literal[
    "noise",
    "data",
    "bubble",
    "imbalance",
    "lengths",
    "communication",
    "latency",
    "recomputation",
    "offload",
    "optimizer",
    "host",
    "computation",
]


@dataclass(frozen=True)
class StepLoss:
    """A kind of loss: what it is called, from which share of a step on it counts, and what to try."""

    limit: Limit
    word: str
    """The diagnosis, as practitioners say it."""
    least: float
    """Share of a step from which on it limits the step; below, it is a detail."""
    noun: str
    """What the lost time went into."""
    advice: str
    """What to try next, with the keys of a suite that it needs."""


LENGTH_ADVICE = (
    "fill global batches with rows of like length (data: {user: {group_by_length: true}}), or put several "
    "rows into one (packing: true)"
)
LOSSES: tuple[StepLoss, ...] = (
    StepLoss(
        "data",
        "data-bound",
        0.05,
        "waiting for the next batch",
        "prepare batches in worker processes (loader.workers, loader.prefetch_factor), and keep them where "
        "epochs are short (loader.persistent_workers); distbench show --view loader has the speed with an "
        "infinitely fast loader",
    ),
    StepLoss(
        "bubble",
        "pipeline bubble",
        0.1,
        "waiting of stages for one another",
        "more micro-batches (pp.micro_batches), an interleaved or zero-bubble schedule (pp.schedule), stages "
        "of equal time (pp.split: time)",
    ),
    StepLoss(
        "imbalance",
        "imbalance between ranks",
        0.1,
        "waiting for slower ranks",
        "find the slow rank (distbench show --view ranks); give all ranks rows of the same length, and each "
        "its own cores",
    ),
    StepLoss(
        "lengths",
        "imbalance between ranks (lengths of rows)",
        0.1,
        "waiting for ranks with longer rows",
        LENGTH_ADVICE,
    ),
    StepLoss(
        "communication",
        "communication-bound",
        0.1,
        "transfer that no computation hides",
        "fewer reductions per sample (batch.micro_batch_size, gradient accumulation with "
        "fsdp.reduce_each_micro_batch: false), buckets that overlap (ddp.bucket_cap_mb, zero.overlap_comm, "
        "zero.reduce_bucket_size), less to move (fsdp.sharding: grad_op; where gradients may be rounded, "
        "precision.reduce: bf16)",
    ),
    StepLoss(
        "latency",
        "communication-bound (latency)",
        0.1,
        "transfer that no computation hides",
        "fewer and larger calls: buckets of the default size or more (ddp.bucket_cap_mb, "
        "zero.reduce_bucket_size), fewer reductions per sample (batch.micro_batch_size, gradient "
        "accumulation with fsdp.reduce_each_micro_batch: false)",
    ),
    StepLoss(
        "recomputation",
        "memory-bound (recomputation)",
        0.1,
        "recomputing activations",
        "activation_checkpointing: selective or none, as far as memory allows; a strategy that shards more "
        "may free it",
    ),
    StepLoss(
        "offload",
        "memory-bound (offload)",
        0.1,
        "copying offloaded states, and waiting for their update on the host",
        "offload less, as far as memory allows (zero.offload_optimizer, zero.offload_parameters, "
        "fsdp.cpu_offload): a strategy that shards more may free it; more work per copy "
        "(batch.micro_batch_size)",
    ),
    StepLoss(
        "optimizer",
        "optimizer-bound",
        0.15,
        "the optimizer step",
        "a fused or foreach kernel (optimizer.kernel), sharded states (zero, fsdp, ddp.sharded_optimizer), "
        "larger batches per update",
    ),
    StepLoss(
        "host",
        "host-bound",
        0.15,
        "neither computing nor communicating: Python and launches",
        "a larger micro-batch (batch.micro_batch_size), compile: true, fewer and larger operations",
    ),
)
"""In the order in which they are named if two are as large."""
NOISE_ADVICE = "measure again on a quiet machine (distbench run SUITE --repeat-noisy 3)"
COMPUTATION_ADVICE = (
    "shorter dtypes (precision.compute: bf16), compile: true, a faster attention; which layers take the "
    "time: distbench show --view layers"
)
