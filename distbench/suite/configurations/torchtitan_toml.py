"""The TOML of torchtitan 0.2 (torchtitan/config/job_config.py of v0.2.2), read as a training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from distbench.core.case import PluginChoice
from distbench.suite.configurations.settings import DescribedTraining, LeftOut, Settings

_OTHER_SECTIONS = ("parallelism", "lr_scheduler", "activation_checkpoint", "optimizer", "model", "job")
_WITHOUT_EFFECT = (
    *("job", "profiling", "metrics", "checkpoint", "comm", "validation", "experimental", "debug"),
    *("fault_tolerance", "memory_estimation"),
)
_TRAINING_WITHOUT_EFFECT = ("dataset_path", "gc_freq", "gc_debug", "seed", "deterministic", "steps")
_DTYPES = {"float32": "fp32", "bfloat16": "bf16"}
_DEGREES = {
    "pp": "pipeline_parallel_degree",
    "dp_replicate": "data_parallel_replicate_degree",
    "dp_shard": "data_parallel_shard_degree",
    "cp": "context_parallel_degree",
    "tp": "tensor_parallel_degree",
}
"""Dimension of the mesh -> its key in ``parallelism``; -1 shards over all devices that are left."""
_FLOAT8 = "quantize.linear.float8"
_KERNELS = {"for-loop": "loop", "foreach": "foreach", "fused": "fused"}


def is_torchtitan(settings: Mapping[str, Any]) -> bool:
    """True if *settings* are of torchtitan."""
    return "training" in settings and bool({*_OTHER_SECTIONS} & {*settings})


def read_torchtitan(given: Mapping[str, Any]) -> DescribedTraining:
    """The training that the settings *given* describe."""
    left_out: list[LeftOut] = []
    settings = Settings(given, left_out)
    settings.ignore(_WITHOUT_EFFECT)
    training = settings.section("training")
    training.ignore(_TRAINING_WITHOUT_EFFECT)
    total = given["training"].get("steps") if isinstance(given["training"], Mapping) else None
    optimizer = _optimizer(settings.section("optimizer"))
    # torchtitan always clips
    clipping = training.take("max_norm", 1.0)
    if isinstance(clipping, int | float) and 0 < clipping < float("inf"):
        optimizer["clip_grad_norm"] = float(clipping)
    optimizer |= _schedule(settings.section("lr_scheduler"), total if type(total) is int else 10_000)
    batch = _batch(training)
    found = DescribedTraining(PluginChoice("fsdp"), batch, optimizer, left_out=left_out)
    found.precision = _precision(training)
    model = settings.section("model")
    converters = model.take("converters", [])
    found.precision |= _float8(settings, isinstance(converters, list) and _FLOAT8 in converters)
    if converters not in ([], [_FLOAT8]):
        model.leave("converters", f"{converters}: the suite has at most {_FLOAT8}", "training")
    found.strategy, found.world_size = _strategy(settings.section("parallelism"), training, batch)
    length = given["training"].get("seq_len") if isinstance(given["training"], Mapping) else None
    _undo_scale(found, training, length if type(length) is int else None)
    found.activation_checkpointing = _checkpointing(settings.section("activation_checkpoint"))
    compiled = settings.section("compile")
    found.compile = bool(compiled.take("enable", False))
    compiled.leave_unless("components", ["model"], "a suite compiles each layer of the model", "speed")
    compiled.leave_rest()
    for key in ("seq_len", "dataset"):
        if key in training:
            training.leave(key, "the data of the suite decide it: set it in workload or data", "training")
    model.ignore(("print_after_conversion", "hf_assets_path", "tokenizer_path"))
    for key in ("name", "flavor"):
        if key in model:
            model.leave(key, f"{model.take(key)}: a suite has the model of --model", "training")
    model.leave_rest()
    training.leave_rest()
    settings.leave_rest()
    return found


def _batch(training: Settings) -> dict[str, int]:
    """Micro-batch of a rank, 8 by default, and the global batch; -1: no gradient accumulation."""
    batch = {"micro_batch_size": training.take_whole("local_batch_size", 8) or 8}
    if (whole := training.take_whole("global_batch_size", -1) or -1) > 0:
        batch["global_batch_size"] = whole
    return batch


def _precision(training: Settings) -> dict[str, Any]:
    """Dtypes of FSDP's policy: parameters in bf16 and reduction in fp32 by default."""
    names = {"mixed_precision_param": "compute", "mixed_precision_reduce": "reduce", "dtype": "master"}
    usual = {"compute": "bf16", "reduce": "fp32", "master": "fp32"}
    for theirs, ours in names.items():
        named = training.take(theirs)
        if named is not None and str(named) not in _DTYPES:
            training.leave(theirs, f"{named!r}: the suite has {usual[ours]}", "training")
        usual[ours] = _DTYPES.get(str(named), usual[ours])
    return usual


def _float8(settings: Settings, is_on: bool) -> dict[str, Any]:
    """Recipe of torchao's converter, if the model is converted."""
    section, model = settings.section(_FLOAT8), settings.section("quantize")
    linear = model.section("linear")
    section = section if section.keys else linear.section("float8")
    recipe = section.take("recipe_name", "tensorwise")
    section.ignore(("filter_fqns", "enable_fsdp_float8_all_gather"))
    emulated = {"float8_emulated": True} if section.take("emulate", False) and is_on else {}
    for each in (section, linear, model):
        each.leave_rest()
    return {"float8": str(recipe), **emulated} if is_on else {}


def _optimizer(section: Settings) -> dict[str, Any]:
    """The optimizer with the defaults of torchtitan."""
    kind = str(section.take("name", "AdamW"))
    if kind not in ("AdamW", "Adam"):
        section.leave("name", f"{kind}: the suite has AdamW", "training")
    kernel = str(section.take("implementation", "fused"))
    if kernel not in _KERNELS:
        section.leave("implementation", f"{kernel}: the suite has the fused kernel", "speed")
    found = {
        "name": "adam" if kind == "Adam" else "adamw",
        "lr": section.take_number("lr", 8e-4),
        "betas": [section.take_number("beta1", 0.9), section.take_number("beta2", 0.95)],
        "eps": section.take_number("eps", 1e-8),
        "weight_decay": section.take_number("weight_decay", 0.1),
        "kernel": _KERNELS.get(kernel, "fused"),
    }
    section.leave_unless("early_step_in_backward", False, "the suite updates after it", "memory")
    section.leave_rest()
    return found


def _schedule(section: Settings, total: int) -> dict[str, Any]:
    """Warm-up and decay over *total* steps, by torchtitan's formula."""
    warmup = section.take_whole("warmup_steps", 200) or 0
    share, kind = section.take_number("decay_ratio"), str(section.take("decay_type", "linear"))
    least = section.take_number("min_lr_factor", 0.0) or 0.0
    section.leave_rest()
    if least == 1:
        return {"warmup_steps": warmup}
    decay = total - warmup if share is None else round(total * share)
    whole = decay >= total - warmup
    if kind not in ("linear", "cosine") or (kind == "cosine" and not whole) or decay <= 0:
        section.leave("decay_type", f"{kind} over {decay} steps: the rate stays constant", "training")
        return {"warmup_steps": warmup}
    found = {"schedule": kind if whole else "wsd", "warmup_steps": warmup, "total_steps": total}
    return found | {"final_lr_fraction": least} | ({} if whole else {"decay_steps": decay})


def _checkpointing(section: Settings) -> str:
    mode = str(section.take("mode", "selective"))
    section.ignore(("early_stop", "per_op_sac_force_recompute_mm_shapes_by_fqns"))
    if mode == "selective" and (option := str(section.take("selective_ac_option", "2"))) != "op":
        section.leave("selective_ac_option", f"{option}: the suite keeps all matrix products", "memory")
    section.ignore(("selective_ac_option",))
    if mode not in ("none", "full", "selective"):
        section.leave("mode", f"{mode}: the suite recomputes nothing", "memory")
        mode = "none"
    section.leave_rest()
    return mode


def _strategy(
    section: Settings, training: Settings, batch: dict[str, int]
) -> tuple[PluginChoice, int | None]:
    """The strategy, and the number of ranks, which no ``-1`` leaves open."""
    sizes = {name: section.take_whole(key, -1 if name == "dp_shard" else 1) for name, key in _DEGREES.items()}
    over = {name: size for name, size in sizes.items() if size and size > 1}
    offload = bool(training.take("enable_cpu_offload", False))
    ranks = None
    if (sizes["dp_shard"] or 1) > 0:
        ranks = math.prod(over.values())
    resharding = str(section.take("fsdp_reshard_after_forward", "default"))
    if resharding not in ("default", "always", "never"):
        section.leave("fsdp_reshard_after_forward", f"{resharding}: the suite has torch's default", "speed")
    if "pp" in over:
        choice = _pipeline(section, over, batch, resharding)
    elif "cp" in over:
        choice = _ring(section, over)
    elif over.keys() == {"dp_replicate"} and sizes["dp_shard"] == 1:
        choice = PluginChoice("ddp")
    elif over.keys() == {"tp"} and sizes["dp_shard"] == 1:
        choice = PluginChoice("tp", {"sequence_parallel": True, "loss_parallel": True})
    else:
        choice = _sharded(over, resharding)
    if offload and choice.name == "fsdp":
        choice = PluginChoice("fsdp", {**choice.options, "cpu_offload": True})
    elif offload:
        training.leave("enable_cpu_offload", "a suite offloads only in fsdp", "memory")
    if section.take("disable_loss_parallel", False) and "loss_parallel" in choice.options:
        choice = PluginChoice(choice.name, {**choice.options, "loss_parallel": False})
    section.leave_unless("expert_parallel_degree", 1, "a suite has it in the strategy ep", "training")
    section.leave_rest()
    _set_batch(batch, over, ranks)
    return choice, ranks


def _set_batch(batch: dict[str, int], over: Mapping[str, int], ranks: int | None) -> None:
    """Add to *batch* its whole, which the file leaves to the number of devices unless it says it."""
    shared = math.prod(over.get(name, 1) for name in ("pp", "cp", "tp"))
    if "global_batch_size" in batch:
        return
    if ranks:
        batch["global_batch_size"] = batch["micro_batch_size"] * ranks // shared
    elif batch["micro_batch_size"] % shared == 0:
        batch["per_device_batch_size"] = batch["micro_batch_size"] // shared


def _undo_scale(found: DescribedTraining, training: Settings, length: int | None) -> None:
    """Set clipping, eps and a coupled weight decay for gradients that are means, as those of a suite are.

    torchtitan 0.2.2 does not divide those of a pipeline by the tokens of an update, and divides those of
    DDP by the ranks once more.
    """
    spec, factor = found.optimizer, 1.0
    scaled = ("clip_grad_norm", "eps", *(["weight_decay"] if spec["name"] == "adam" else []))
    if found.strategy.name == "ddp":
        factor = float(found.world_size or 1)
    elif found.strategy.name == "pp" and length and "global_batch_size" in found.batch:
        factor = 1 / (length * found.batch["global_batch_size"])
    elif found.strategy.name == "pp":
        why = "a pipeline's gradients are sums, whose tokens the file does not tell: the suite has its own"
        training.leave("max_norm", f"with eps: {why}", "training")
        for key in scaled:
            spec.pop(key, None)
    for key in scaled:
        if spec.get(key):
            spec[key] *= factor


def _sharded(over: Mapping[str, int], resharding: str) -> PluginChoice:
    """FSDP2, in a mesh with the dimensions *over* but for the shards, which take the rest."""
    options: dict[str, Any] = {}
    if mesh := {name: over[name] for name in ("dp_replicate", "tp") if name in over}:
        options["mesh"] = mesh
    if "tp" in over:
        options |= {"sequence_parallel": True, "loss_parallel": True}
    if resharding == "never":
        options["sharding"] = "grad_op"
    if resharding == "always":
        options["reshard_root"] = True
    return PluginChoice("fsdp", options)


def _ring(section: Settings, over: Mapping[str, int]) -> PluginChoice:
    """torch's ring, whose ranks also shard the model."""
    section.ignore(("context_parallel_load_balancer",))
    section.leave_unless("context_parallel_rotate_method", "allgather", "the suite gathers", "speed")
    for name in ("tp", "dp_replicate"):
        if name in over:
            section.leave(_DEGREES[name], f"{over[name]}: a suite does not cut it beside cp", "training")
    return PluginChoice("cp", {"implementation": "ring", "sharded": True, "mesh": {"cp": over["cp"]}})


def _pipeline(
    section: Settings, over: Mapping[str, int], batch: Mapping[str, int], resharding: str
) -> PluginChoice:
    """Pipeline with its schedule, and the dimensions inside its ranks."""
    size = section.take_whole("pipeline_parallel_microbatch_size", 1) or 1
    inner = {name: size for name, size in over.items() if name not in ("pp", "cp")}
    options: dict[str, Any] = {
        "schedule": str(section.take("pipeline_parallel_schedule", "1F1B")),
        "micro_batches": max(1, batch["micro_batch_size"] // size),
        **({"mesh": inner} if inner else {}),
    }
    if "cp" in over:
        section.leave(_DEGREES["cp"], f"{over['cp']}: a suite has no cp inside a pipeline", "training")
    if "tp" in over:
        options |= {"sequence_parallel": True, "loss_parallel": True}
    if resharding == "always":
        options["reshard_after_forward"] = True
    for key in ("module_fqns_per_model_part", "pipeline_parallel_layers_per_stage"):
        if key in section:
            section.leave(key, "a suite divides the layers evenly", "speed")
    section.ignore(("pipeline_parallel_expert_parallel_overlap",))
    for part in ("first", "last"):
        key = f"pipeline_parallel_{part}_stage_less_layers"
        section.leave_unless(key, 0, "a suite counts only layers", "speed")
    return PluginChoice("pp", options)
