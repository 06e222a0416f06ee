"""DeepSpeed's configuration for the options of ``zero``, for building the engine and for exports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distbench.core.case import Case, PrecisionConfig

if TYPE_CHECKING:
    from distbench.strategies.zero import Zero

DEEPSPEED_DEFAULTS = {
    "reduce_bucket_size": 500_000_000,
    "allgather_bucket_size": 500_000_000,
    "prefetch_bucket_size": 50_000_000,
    "max_live_parameters": 1_000_000_000,
    "param_persistence_threshold": 100_000,
    "max_reuse_distance": 1_000_000_000,
}
"""DeepSpeed's own sizes, in elements (https://www.deepspeed.ai/docs/config-json)."""
NVME_SIZES = ("sub_group_size", "nvme_buffer_size")
"""Sizes of NVMe offload, in elements of a rank, which depend on the model (``disk.sizes``)."""
SMALL_MODEL_PARAMETERS = DEEPSPEED_DEFAULTS["max_live_parameters"]
"""Parameters of the largest model of which stage 3, with DeepSpeed's own sizes, would never release one."""


@dataclass(frozen=True)
class ModelSizes:
    """Numbers of elements of a model, from which DeepSpeed's sizes are chosen."""

    total: int
    largest_layer: int
    """Elements of its largest layer."""
    largest_parameter: int
    """Elements of its largest parameter, in a layer or not."""


def optional_sizes(strategy: Zero) -> dict[str, str]:
    """Sizes (in elements) that a suite may leave unset: distbench's name -> DeepSpeed's."""
    names = {name: name for name in ("reduce_bucket_size", "allgather_bucket_size")}
    if strategy.stage == 3:
        names |= {name: f"stage3_{name}" for name in DEEPSPEED_DEFAULTS if name not in names}
    return names


def sizes_for_model(strategy: Zero, elements: ModelSizes) -> dict[str, int]:
    """Those sizes as set in the suite, or else DeepSpeed's own; in layers for a small model."""
    layer = elements.largest_layer
    in_layers = {
        "max_live_parameters": 2 * layer + max(layer, elements.largest_parameter),
        "param_persistence_threshold": 0,
        "max_reuse_distance": 0,
    }
    usual = in_layers if elements.total <= SMALL_MODEL_PARAMETERS else DEEPSPEED_DEFAULTS
    given = {key: getattr(strategy, key) for key in optional_sizes(strategy)}
    return {key: usual.get(key, layer) if size is None else size for key, size in given.items()}


def configuration(strategy: Zero, case: Case, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Configuration with every hyper-parameter explicit except the optimizer's.

    *sizes* has distbench's names. A size missing from it takes DeepSpeed's default.
    """
    over, parts = strategy.tensor_parallelism, strategy.pipeline.micro_batches if strategy.pipeline else 1
    # DeepSpeed would check the batch as if ranks that share samples had different ones
    sharing = over.ranks > 1
    cut = {"tensor_parallel": over.configuration(case)} if sharing else {}
    return {
        **({} if sharing else {"train_batch_size": case.batch.global_batch_size}),
        # a pipeline accumulates over the parts of a micro-batch
        "train_micro_batch_size_per_gpu": case.batch.micro_batch_size // parts,
        "gradient_accumulation_steps": case.batch.gradient_accumulation_steps * parts,
        # DeepSpeed clips at 1.0 by default
        "gradient_clipping": case.optimizer.clip_grad_norm or 0.0,
        "communication_data_type": case.precision.reduce,
        "bf16": {"enabled": case.precision.compute == "bf16"},
        "fp16": _fp16(case.precision),
        **_data_types(strategy, case),
        # torch's optimizers, including SGD and those with offload, instead of DeepSpeed's kernels
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "wall_clock_breakdown": False,
        # on by default, to log a throughput: it waits for the device before and after each micro-batch
        "timers": {"throughput": {"enabled": False}},
        "steps_per_print": None,
        "zero_optimization": _zero_section(strategy, case, sizes),
        **({"aio": dict(strategy.aio)} if strategy.aio else {}),
        **_division(strategy),
        **cut,
    }


def _division(strategy: Zero) -> dict[str, Any]:
    """Keys on the division of gradients; none if it is DeepSpeed's own."""
    names = ("prescale_gradients", "gradient_predivide_factor")
    return {name: value for name, value in strategy.tuned_options.items() if name in names}


def _fp16(precision: PrecisionConfig) -> dict[str, Any]:
    """DeepSpeed's section ``fp16``."""
    enabled = {"enabled": precision.compute == "fp16"}
    if not precision.is_scaled_dynamically:
        # 0 would mean a dynamic scale, by which stage 0 divides bf16 gradients that it never multiplied
        return {**enabled, "loss_scale": precision.first_loss_scale or 1.0}
    return {
        **enabled,
        "loss_scale": 0,
        "initial_scale_power": precision.initial_scale_power,
        "loss_scale_window": precision.loss_scale_window,
        # with DeepSpeed's default, 2, the first overflow would not lower the scale
        "hysteresis": 1,
        "min_loss_scale": 1,
    }


def _data_types(strategy: Zero, case: Case) -> dict[str, Any]:
    """DeepSpeed's section ``data_types``; stage 0 rejects a dtype other than that of the parameters."""
    if strategy.stage == 0 or case.precision.compute == case.precision.master:
        return {}
    return {"data_types": {"grad_accum_dtype": strategy.grad_accum_dtype}}


def _zero_section(strategy: Zero, case: Case, sizes: Mapping[str, int]) -> dict[str, Any]:
    section: dict[str, Any] = {
        "stage": strategy.stage,
        "overlap_comm": strategy.overlap_comm,
        "contiguous_gradients": strategy.contiguous_gradients,
        "reduce_scatter": True,
        **({"round_robin_gradients": True} if strategy.round_robin_gradients else {}),
        **({"sub_group_size": strategy.sub_group_size} if strategy.sub_group_size else {}),
    }
    of_suite = {**optional_sizes(strategy), "sub_group_size": "sub_group_size"}
    section |= {theirs: sizes[key] for key, theirs in of_suite.items() if key in sizes}
    if strategy.hpz_partition_size > 1:
        section["zero_hpz_partition_size"] = strategy.hpz_partition_size
    if strategy.mics_shard_size > 1:
        section["mics_shard_size"] = strategy.mics_shard_size
    places = {"offload_optimizer": strategy.offload_optimizer, "offload_param": strategy.offload_parameters}
    for theirs, place in places.items():
        if place != "none":
            on_disk = {"nvme_path": strategy.nvme_path} if place == "nvme" else {}
            pins = strategy.pin_memory and case.device == "cuda"
            section[theirs] = {"device": place, "pin_memory": pins, **on_disk}
    if strategy.offload_parameters == "nvme":
        # by default the first 1e9 elements of a rank stay in memory
        section["offload_param"]["max_in_cpu"] = 0
        if "nvme_buffer_size" in sizes:
            section["offload_param"]["buffer_size"] = sizes["nvme_buffer_size"]
    return section
