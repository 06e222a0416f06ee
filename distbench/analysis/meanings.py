"""What each setting of an engine means for a fair comparison, and why. The one place that says so."""

from __future__ import annotations

from typing import Literal

Kind = Literal["work", "speed", "strategy", "unknown"]

# "optimizer" stands for every "optimizer.…" that has no line of its own
_MEANINGS: dict[str, tuple[Kind, str]] = {
    "effective": ("work", "nothing is known of what it did"),
    # another amount of work, or another algorithm
    "parameters": ("work", "another model"),
    "trainable_tensors": ("work", "another model: frozen, or tied otherwise"),
    "global_batch_size": ("work", "another number of samples in a step"),
    "optimizer": ("work", "another hyper-parameter"),
    "optimizer.class": ("work", "another class of optimizer"),
    "optimizer.kernel": ("work", "another implementation of the update"),
    "optimizer.steps": ("work", "another number of updates until the timed window"),
    "optimizer.variants": ("work", "another variant of the algorithm"),
    "clip_grad_norm": ("work", "clips gradients otherwise"),
    "activation_checkpointing": ("work", "recomputes another part of the forward pass"),
    "checkpointed_layers": ("work", "recomputes another part of the forward pass"),
    "process.seed": ("work", "another seed"),
    # the same algorithm in other numbers: other bytes, another speed, another rounding
    "dtypes": ("work", "another dtype"),
    "dtypes.compute": ("work", "computes in another dtype"),
    "dtypes.gradients": ("work", "accumulates gradients in another dtype"),
    "dtypes.reduce": ("work", "reduces gradients in another dtype"),
    "dtypes.master": ("work", "updates weights of another dtype"),
    "dtypes.optimizer_state": ("work", "keeps optimizer states in another dtype"),
    "loss_scale": ("work", "scales the loss otherwise"),
    "process.tf32": ("work", "multiplies fp32 matrices in another precision"),
    "process.matmul_precision": ("work", "multiplies fp32 matrices in another precision"),
    "process.attention": ("work", "may choose from other kernels of attention"),
    # the same work at another pace
    "process.deterministic": ("speed", "another choice of algorithms"),
    "process.threads": ("speed", "another number of threads a rank"),
    "process.warm": ("speed", "ranks started otherwise"),
    # what strategies are compared for
    "engine": ("strategy", "the strategy itself"),
    # 16-bit parameters beside fp32 masters are how some frameworks compute in 16 bits
    "dtypes.parameters": ("strategy", "where a framework keeps its master weights"),
    **dict.fromkeys(
        ("world_size", "micro_batch_size", "gradient_accumulation_steps"),
        ("strategy", "how the same samples are cut up"),
    ),
    **dict.fromkeys(
        ("units", "unit_classes", "mesh", "placements", "sharding_strategy", "zero_stage"),
        ("strategy", "what is sharded, and how"),
    ),
    "param_persistence_threshold": ("strategy", "what is sharded, and how"),
    **dict.fromkeys(
        ("reshard_after_forward", "reshard_root", "max_live_parameters", "max_reuse_distance"),
        ("strategy", "how long gathered parameters are kept"),
    ),
    **dict.fromkeys(
        ("bucket_bytes_cap", "reduce_bucket_size", "allgather_bucket_size", "prefetch_bucket_size"),
        ("strategy", "in what portions it communicates"),
    ),
    **dict.fromkeys(
        ("overlap_comm", "reduce_each_micro_batch", "gradient_as_bucket_view", "static_graph"),
        ("strategy", "when it communicates, and from where"),
    ),
    **dict.fromkeys(
        ("parameters_on", "optimizer_state_on", "cpu_offload", "offload"),
        ("strategy", "where the state of the training lives"),
    ),
    "optimizer_wrapper": ("strategy", "the strategy itself"),
}
_UNKNOWN: tuple[Kind, str] = ("unknown", "nobody has said what this setting means for the work")


def meaning(key: str) -> tuple[Kind, str]:
    """Return what a difference in setting *key* (``optimizer.lr``) means, and why."""
    parts = key.split(".")
    known = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next((_MEANINGS[name] for name in known if name in _MEANINGS), _UNKNOWN)
