"""The options of ``zero`` and DeepSpeed's configuration for them, for building the engine and for exports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from distbench.case import Case


@dataclass(frozen=True)
class ZeroOptions:
    """Fields of the plug-in, which engine, configuration and ops read."""

    stage: Literal[0, 1, 2, 3] = 3
    """0: nothing sharded (all-reduce, as DDP). 1: optimizer state. 2: and gradients. 3: and parameters."""
    offload_optimizer: Literal["none", "cpu", "nvme"] = "none"
    """Where the optimizer's state lives and is stepped: on the device, in CPU memory, or on NVMe."""
    offload_parameters: Literal["none", "cpu", "nvme"] = "none"
    """Where parameters live between uses; stage 3 only."""
    nvme_path: str = ""
    """Folder on the NVMe disk for offload to ``nvme``."""
    optimizer_kernel: Literal["torch", "deepspeed"] = "torch"
    """torch: the suite's own optimizer, as in every other strategy. deepspeed: DeepSpeed's kernel
    (FusedAdam; DeepSpeedCPUAdam under offload), the same algorithm with other rounding."""
    reduce_bucket_size: int | None = None
    """Elements of a gradient bucket; null: the largest layer of the model. (DeepSpeed's own default,
    5e8, would dwarf a small model.)"""
    allgather_bucket_size: int | None = None
    """Elements of a parameter gather in stages 1 and 2; null: the largest layer."""
    overlap_comm: bool = False
    """Reduce gradients while the backward pass still runs (stages 1 and 2; on CUDA)."""
    param_persistence_threshold: int = 0
    """Stage 3 keeps parameters smaller than this many elements whole on every rank; 0: shards all.
    (DeepSpeed's own default, 1e5, would leave most of a small model unsharded.)"""
    max_live_parameters: int | None = None
    """Stage 3 releases parameters beyond this many elements; null: three of the largest layer.
    (DeepSpeed's own default, 1e9, would keep a small model whole between forward and backward.)"""
    max_reuse_distance: int = 0
    """Stage 3 keeps a parameter that is needed again within this many elements of computation."""
    prefetch_bucket_size: int | None = None
    """Elements that stage 3 gathers ahead; null: the largest layer."""

    @property
    def offloads(self) -> tuple[str, ...]:
        """``cpu`` or ``nvme`` for each option that moves training state off the device."""
        return tuple(place for place in (self.offload_optimizer, self.offload_parameters) if place != "none")


def open_sizes(strategy: ZeroOptions) -> dict[str, str]:
    """Sizes (in elements) that a suite may leave unset: our name -> DeepSpeed's."""
    sizes = {"reduce_bucket_size": "reduce_bucket_size", "allgather_bucket_size": "allgather_bucket_size"}
    if strategy.stage == 3:
        sizes["max_live_parameters"] = "stage3_max_live_parameters"
        sizes["prefetch_bucket_size"] = "stage3_prefetch_bucket_size"
    return sizes


def for_layers(strategy: ZeroOptions, unit: int) -> dict[str, int]:
    """Those sizes as set in the suite, or else in units of the model's largest layer."""
    usual = {"max_live_parameters": 3 * unit}
    given = {key: getattr(strategy, key) for key in open_sizes(strategy)}
    return {key: usual.get(key, unit) if size is None else size for key, size in given.items()}


def configuration(strategy: ZeroOptions, case: Case, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Configuration, every hyper-parameter explicit but the optimizer's; *sizes* by our names.

    A size missing from *sizes* takes DeepSpeed's default.
    """
    return {
        "train_batch_size": case.batch.global_batch_size,
        "train_micro_batch_size_per_gpu": case.batch.micro_batch_size,
        "gradient_accumulation_steps": case.batch.gradient_accumulation_steps,
        # DeepSpeed clips at 1.0 by default
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


def _section(strategy: ZeroOptions, case: Case, sizes: Mapping[str, int]) -> dict[str, Any]:
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
