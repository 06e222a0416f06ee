"""DeepSpeed's JSON (https://www.deepspeed.ai/docs/config-json), read as a training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distbench.core.case import PluginChoice
from distbench.strategies.zero.config import DEEPSPEED_DEFAULTS
from distbench.suite.configurations.settings import DescribedTraining, LeftOut, Settings

_WITHOUT_EFFECT = (
    *("steps_per_print", "wall_clock_breakdown", "dump_state", "memory_breakdown", "timers", "checkpoint"),
    *("zero_allow_untested_optimizer", "comms_logger", "tensorboard", "wandb", "csv_monitor"),
    *("flops_profiler", "monitor_config", "zero_force_ds_cpu_optimizer", "dataloader_drop_last"),
)
_ZERO_WITHOUT_EFFECT = (
    *("stage3_gather_16bit_weights_on_model_save", "stage3_gather_fp16_weights_on_model_save"),
    *("load_from_fp32_weights", "elastic_checkpoint", "ignore_unused_parameters"),
)
_OPTIMIZERS = {"adam": "adamw", "adamw": "adamw", "lamb": "lamb", "lion": "lion", "sgd": "sgd"}
"""Types of DeepSpeed, in lower case, whose Adam decouples the weight decay by default."""
_DTYPES = {"bf16": "bf16", "bfp16": "bf16", "fp16": "fp16", "fp32": "fp32"}
_CLIPPING = 1.0
"""Norm to which DeepSpeed clips if the file does not say (``GRADIENT_CLIPPING_DEFAULT``)."""
_SIZES = ("prefetch_bucket_size", "param_persistence_threshold", "max_live_parameters", "max_reuse_distance")
_AIO_COUNTS = ("block_size", "queue_depth", "intra_op_parallelism")
_AIO_SWITCHES = ("single_submit", "overlap_events")
_WARMUP_STEPS = 1000
"""``warmup_num_steps`` of DeepSpeed's schedulers if the file does not say."""


def is_deepspeed(settings: Mapping[str, Any]) -> bool:
    """True if *settings* are of DeepSpeed."""
    return any(
        key in settings for key in ("zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu")
    )


def read_deepspeed(given: Mapping[str, Any]) -> DescribedTraining:
    """The training that the settings *given* describe."""
    left_out: list[LeftOut] = []
    settings = Settings(given, left_out)
    settings.ignore(_WITHOUT_EFFECT)
    precision = _precision(settings)
    strategy = _strategy(settings, precision)
    optimizer = _optimizer(settings)
    if clipping := settings.take_number("gradient_clipping", _CLIPPING):
        optimizer["clip_grad_norm"] = clipping
    batch, world_size = _batch(settings)
    settings.leave_rest()
    return DescribedTraining(strategy, batch, optimizer, precision, world_size=world_size, left_out=left_out)


def _batch(settings: Settings) -> tuple[dict[str, int], int | None]:
    """The batch, and the number of ranks, which follows if all three of its numbers are given."""
    whole = settings.take_whole("train_batch_size")
    micro = settings.take_whole("train_micro_batch_size_per_gpu")
    steps = settings.take_whole("gradient_accumulation_steps")
    batch: dict[str, int] = {}
    if whole is not None:
        batch["global_batch_size"] = whole
    elif micro is not None:
        batch["per_device_batch_size"] = micro * (steps or 1)
    if micro is not None:
        batch["micro_batch_size"] = micro
    elif steps is not None:
        batch["gradient_accumulation_steps"] = steps
    if not whole or not micro or not steps or whole % (micro * steps):
        return batch, None
    return batch, whole // (micro * steps)


def _precision(settings: Settings) -> dict[str, Any]:
    bf16, fp16 = settings.section("bf16" if "bf16" in settings else "bfloat16"), settings.section("fp16")
    compute = "bf16" if bf16.take("enabled", False) else "fp16" if fp16.take("enabled", False) else "fp32"
    # DeepSpeed reduces in the dtype of the computation unless told otherwise
    reduce = _dtype(settings, "communication_data_type", compute)
    precision: dict[str, Any] = {"compute": compute, "reduce": reduce}
    if compute == "bf16":
        bf16.leave_rest()
    if compute == "fp16":
        scale = fp16.take_number("loss_scale", 0)
        precision["loss_scale"] = scale or "dynamic"
        if not scale:
            for theirs, ours in (("initial_scale_power", "initial_scale_power"), ("loss_scale_window",) * 2):
                if (value := fp16.take_whole(theirs)) is not None:
                    precision[ours] = value
            hysteresis = fp16.take_whole("hysteresis", 2)
            if hysteresis != 1:
                why = f"{hysteresis}: a suite lowers the scale at the first overflow"
                fp16.leave("hysteresis", why, "training")
        fp16.leave_unless("min_loss_scale", 1, "a suite has no least scale", "training")
        fp16.leave_unless("auto_cast", False, "true: a suite casts no inputs", "training")
        fp16.leave_rest()
    return precision


def _dtype(section: Settings, key: str, usual: str) -> str:
    """Dtype that *key* names, or the *usual* one."""
    named = section.take(key)
    if named is not None and str(named) not in _DTYPES:
        section.leave(key, f"{named!r}: the suite has {usual}", "training")
    return _DTYPES.get(str(named), usual)


def _strategy(settings: Settings, precision: Mapping[str, Any]) -> PluginChoice:
    zero = settings.section("zero_optimization")
    zero.ignore(_ZERO_WITHOUT_EFFECT)
    stage = zero.take_whole("stage", 0) or 0
    options: dict[str, Any] = {"stage": stage}
    options |= _offloads(zero)
    options |= _aio(settings.section("aio"), options) | _division(settings, stage)
    options |= _sizes(zero, stage) if stage else {}
    if "overlap_comm" in zero and (overlap := zero.take("overlap_comm")) is not None and stage:
        options["overlap_comm"] = bool(overlap)
    for theirs, ours in (("zero_hpz_partition_size", "hpz_partition_size"), ("mics_shard_size",) * 2):
        if (size := zero.take_whole(theirs)) is not None and size > 1:
            options[ours] = size
    for key in ("quantized_weights", "quantized_gradients"):
        if zero.take(f"zero_{key}", False):
            options[key] = True
    # sizes of another stage
    zero.ignore(("reduce_bucket_size", "allgather_bucket_size", *(f"stage3_{name}" for name in _SIZES)))
    options |= _gradient_dtype(settings, precision["compute"], stage)
    split = settings.section("tensor_parallel")
    if (ranks := split.take_whole("autotp_size")) is not None and ranks > 1:
        options["mesh"] = {"tp": ranks}
    split.leave_rest()
    options |= _tuned(zero, options, precision["compute"])
    _leave_zero(zero)
    return PluginChoice("zero", options)


def _sizes(zero: Settings, stage: int) -> dict[str, int]:
    """Sizes in elements; what the file does not say is DeepSpeed's default, not distbench's for the model."""
    names = {"reduce_bucket_size": "reduce_bucket_size"}
    if stage == 3:
        names |= {name: f"stage3_{name}" for name in _SIZES}
    else:
        names["allgather_bucket_size"] = "allgather_bucket_size"
    sizes = {}
    for ours, theirs in names.items():
        if zero.is_auto(theirs):
            zero.leave(theirs, "auto: the suite decides it by the size of the model", "speed")
        elif (size := zero.take_whole(theirs, DEEPSPEED_DEFAULTS[ours])) is not None:
            sizes[ours] = size
    return sizes


def _offloads(zero: Settings) -> dict[str, Any]:
    """Options for both kinds of offload, of which a suite pins both or none."""
    options: dict[str, Any] = {}
    pins: dict[str, bool] = {}
    for theirs, ours in (("offload_optimizer", "offload_optimizer"), ("offload_param", "offload_parameters")):
        section = zero.section(theirs)
        pin = bool(section.take("pin_memory", True))
        if chosen := _offload(section, ours):
            options |= chosen
            pins[theirs] = pin
    pinned = [theirs for theirs, pin in pins.items() if pin]
    if len(pinned) == 1 and len(pins) == 2:
        zero.leave(f"{pinned[0]}.pin_memory", "a suite pins both kinds of states or none", "speed")
    return {**options, **({"pin_memory": False} if len(pinned) < len(pins) else {})}


def _offload(section: Settings, option: str) -> dict[str, Any]:
    place = section.take("device", "none")
    chosen = {} if place in (None, "none") else {option: str(place)}
    if path := section.take("nvme_path"):
        chosen |= {"nvme_path": str(path)} if place == "nvme" else {}
    section.leave_unless("ratio", 1.0, "a suite offloads all of it", "memory")
    for key in ("buffer_count", "buffer_size", "max_in_cpu", "pipeline_read", "pipeline_write", "fast_init"):
        if key in section:
            section.leave(key, "a suite decides it by the size of the model", "speed")
    section.leave_rest()
    return chosen


def _aio(section: Settings, options: Mapping[str, Any]) -> dict[str, Any]:
    """Requests to the disk, which only offload to NVMe makes."""
    if "nvme_path" not in options:
        return {}
    if "thread_count" in section:
        section.leave("thread_count", "DeepSpeed reads only intra_op_parallelism", "speed")
    counts = {key: section.take_whole(key) for key in _AIO_COUNTS}
    switches = {key: section.take(key) for key in _AIO_SWITCHES}
    section.leave_rest()
    chosen = {key: value for key, value in {**counts, **switches}.items() if value is not None}
    return {"aio": chosen} if chosen else {}


def _division(settings: Settings, stage: int) -> dict[str, Any]:
    """Options for the division of gradients, which DeepSpeed lets nobody choose from stage 1 on."""
    prescales = bool(settings.take("prescale_gradients", False))
    factor = settings.take_number("gradient_predivide_factor", 1.0) or 1.0
    if stage:
        for key, is_set in (("prescale_gradients", prescales), ("gradient_predivide_factor", factor != 1)):
            if is_set:
                settings.leave(key, f"stage {stage} divides after the reduction", "training")
        return {}
    if prescales:
        # the factor then has no effect
        return {"prescale_gradients": True}
    return {"gradient_predivide_factor": factor} if factor != 1 else {}


def _tuned(zero: Settings, options: Mapping[str, Any], compute: str) -> dict[str, Any]:
    """Options that people tune, in the stages that have them."""
    stage, in_memory = options["stage"], "offload_optimizer" not in options
    is_bf16_optimizer = (stage, compute, options.get("grad_accum_dtype")) == (1, "bf16", None) and in_memory
    partitions = stage in (1, 2) and not is_bf16_optimizer
    chosen: dict[str, Any] = {}
    if zero.take("round_robin_gradients", False) and partitions:
        chosen["round_robin_gradients"] = True
    if not zero.take("contiguous_gradients", True) and (stage == 3 or (partitions and in_memory)):
        chosen["contiguous_gradients"] = False
    if (size := zero.take_whole("sub_group_size")) is not None and stage == 3:
        chosen["sub_group_size"] = size
    return chosen


def _gradient_dtype(settings: Settings, compute: str, stage: int) -> dict[str, str]:
    """Option for the dtype in which gradients are added up: by default that of the computation."""
    section = settings.section("data_types")
    dtype = _dtype(section, "grad_accum_dtype", compute)
    section.leave_rest()
    if not stage or dtype == "fp32":
        return {}
    if dtype == "fp16":
        settings.leave("data_types.grad_accum_dtype", "fp16: a suite adds gradients up in fp32", "memory")
        return {}
    return {"grad_accum_dtype": dtype}


def _leave_zero(zero: Settings) -> None:
    usual = "is always on in a suite"
    for key in ("reduce_scatter", "allgather_partitions"):
        zero.leave_unless(key, True, f"false: it {usual}", "speed")
    if "stage3_module_granularity_threshold" in zero:
        zero.leave("stage3_module_granularity_threshold", "a suite gathers every layer by itself", "speed")
    zero.leave_rest()


def _optimizer(settings: Settings) -> dict[str, Any]:
    if "optimizer" not in settings:
        settings.leave("optimizer", "missing, so the script makes it: the suite has AdamW", "training")
        return _schedule(settings.section("scheduler"))
    section = settings.section("optimizer")
    kind = str(section.take("type", "Adam"))
    parameters = section.section("params")
    decoupled = parameters.take("adam_w_mode", True)
    if kind.lower() != "sgd" and not parameters.take("torch_adam", False):
        section.leave("type", "DeepSpeed's kernel: zero.optimizer_kernel: deepspeed has it", "speed")
    parameters.ignore(("fused", "foreach"))
    name = _OPTIMIZERS.get(kind.lower())
    if name is None:
        section.leave("type", f"{kind}: the suite has AdamW", "training")
    if kind.lower() == "adam" and not decoupled:
        name = "adam"
    optimizer: dict[str, Any] = {"name": name or "adamw"}
    for key in ("lr", "eps", "weight_decay", "momentum"):
        if (value := parameters.take_number(key)) is not None:
            optimizer[key] = value
    betas = parameters.take("betas")
    if isinstance(betas, list) and len(betas) == 2 and all(type(beta) in (int, float) for beta in betas):
        optimizer["betas"] = betas
    elif betas is not None:
        parameters.leave("betas", f"{betas!r} are no two numbers", "training")
    elif optimizer["name"] in ("adam", "adamw", "lamb"):
        # torch's, not distbench's
        optimizer["betas"] = [0.9, 0.999]
    parameters.leave_rest()
    section.leave_rest()
    return optimizer | _schedule(settings.section("scheduler"))


def _schedule(section: Settings) -> dict[str, Any]:
    kind = str(section.take("type", ""))
    parameters = section.section("params")
    if not kind:
        return {}
    schedules = {"WarmupLR": "constant", "WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}
    total = parameters.take_whole("total_num_steps")
    if kind not in schedules or (kind != "WarmupLR" and total is None):
        section.leave("type", f"{kind}: the suite keeps the learning rate constant", "training")
        return {}
    schedule: dict[str, Any] = {"schedule": schedules[kind]}
    schedule["warmup_steps"] = parameters.take_whole("warmup_num_steps", _WARMUP_STEPS)
    if kind != "WarmupLR":
        schedule["total_steps"] = total
    if kind == "WarmupCosineLR":
        schedule["final_lr_fraction"] = parameters.take_number("cos_min_ratio", 0.0001)
    if (rise := parameters.take("warmup_type", "log")) != "linear":
        parameters.leave("warmup_type", f"{rise}: the suite rises linearly", "training")
    parameters.leave_unless("warmup_min_lr", 0, "the suite rises from 0", "training")
    parameters.leave_unless("warmup_min_ratio", 0, "the suite rises from 0", "training")
    if largest := parameters.take_number("warmup_max_lr"):
        schedule["lr"] = largest
    parameters.leave_rest()
    section.leave_rest()
    return schedule
