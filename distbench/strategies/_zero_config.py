"""DeepSpeed's configuration of a ``zero`` case: what the engine is built from, and what a user takes home."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from distbench.case import Case

if TYPE_CHECKING:
    from distbench.strategies.zero import Zero


def open_sizes(strategy: Zero) -> dict[str, str]:
    """Return the sizes (numbers of elements) that a suite may leave open: our name -> DeepSpeed's."""
    sizes = {"reduce_bucket_size": "reduce_bucket_size", "allgather_bucket_size": "allgather_bucket_size"}
    if strategy.stage == 3:
        sizes["max_live_parameters"] = "stage3_max_live_parameters"
        sizes["prefetch_bucket_size"] = "stage3_prefetch_bucket_size"
    return sizes


def for_layers(strategy: Zero, unit: int) -> dict[str, int]:
    """Return those sizes as the suite gives them, or else in units of the model's largest layer."""
    usual = {"max_live_parameters": 3 * unit}
    given = {key: getattr(strategy, key) for key in open_sizes(strategy)}
    return {key: usual.get(key, unit) if size is None else size for key, size in given.items()}


def configuration(strategy: Zero, case: Case, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return the configuration, every hyper-parameter explicit but the optimizer's; *sizes* by our names.

    A size that *sizes* does not tell is DeepSpeed's own.
    """
    return {
        "train_batch_size": case.batch.global_batch_size,
        "train_micro_batch_size_per_gpu": case.batch.micro_batch_size,
        "gradient_accumulation_steps": case.batch.gradient_accumulation_steps,
        # DeepSpeed clips at 1.0 unless it is told not to
        "gradient_clipping": case.optimizer.clip_grad_norm or 0.0,
        "communication_data_type": case.precision.reduce,
        "bf16": {"enabled": case.precision.compute == "bf16"},
        # 0 would mean a dynamic scale, by which stage 0 divides bf16 gradients that it never multiplied
        "fp16": {"enabled": case.precision.compute == "fp16", "loss_scale": case.precision.loss_scale or 1.0},
        # torch's optimizers, SGD and those under offload too, instead of DeepSpeed's kernels
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "wall_clock_breakdown": False,
        "steps_per_print": None,
        "zero_optimization": _section(strategy, case, sizes),
    }


def _section(strategy: Zero, case: Case, sizes: Mapping[str, int]) -> dict[str, Any]:
    section: dict[str, Any] = {
        "stage": strategy.stage,
        "overlap_comm": strategy.overlap_comm,
        "contiguous_gradients": True,
        "reduce_scatter": True,
    }
    section |= {theirs: sizes[key] for key, theirs in open_sizes(strategy).items() if key in sizes}
    if strategy.stage == 3:
        section["stage3_param_persistence_threshold"] = strategy.param_persistence_threshold
        section["stage3_max_reuse_distance"] = strategy.max_reuse_distance
    places = {"offload_optimizer": strategy.offload_optimizer, "offload_param": strategy.offload_parameters}
    for theirs, place in places.items():
        if place != "none":
            folder = {"nvme_path": strategy.nvme_path} if place == "nvme" else {}
            section[theirs] = {"device": place, "pin_memory": case.device == "cuda", **folder}
    return section
