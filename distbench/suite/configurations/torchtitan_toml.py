"""The TOML of torchtitan 0.2 (torchtitan/config/job_config.py of v0.2.2), read as a training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from distbench.core.case import PluginChoice
from distbench.strategies.pp.schedules import SCHEDULES
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
_LACKING = {"pp": "cp", "cp": "tp"}
"""Dimension -> another, which no suite has inside it."""
_LEAST_SHARDS = 2
_FLOAT8 = "quantize.linear.float8"
_KERNELS = {"for-loop": "loop", "foreach": "foreach", "fused": "fused"}
_SCHEDULES = {name.lower(): name for name in SCHEDULES}
"""torch finds them in any case."""


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
    optimizer = _optimizer(settings.section("optimizer")) | _clipping(training)
    optimizer |= _schedule(settings.section("lr_scheduler"), total if type(total) is int else 10_000)
    parallelism = settings.section("parallelism")
    sizes = _sizes(parallelism)
    precision = _precision(training, sizes)
    model = settings.section("model")
    converters = model.take("converters", [])
    is_float8 = isinstance(converters, list) and _FLOAT8 in converters
    precision |= _float8(settings, is_float8 and precision["compute"] == "bf16")
    if is_float8 and precision["compute"] != "bf16":
        model.leave("converters", f"{converters}: a suite has float8 only beside bf16", "training")
    elif converters not in ([], [_FLOAT8]):
        model.leave("converters", f"{converters}: the suite has at most {_FLOAT8}", "training")
    _fit(parallelism, sizes)
    local = training.take_whole("local_batch_size", 8) or 8
    strategy = _strategy(parallelism, training, sizes, local)
    batch = _batch(training, sizes, local)
    found = DescribedTraining(strategy, batch, optimizer, precision, left_out=left_out)
    found.world_size = _ranks(sizes)
    # of a copy: the suite does not carry it over
    _undo_scale(found, training.merged({}).take_whole("seq_len", 2048) or 2048)
    found.activation_checkpointing = _checkpointing(settings.section("activation_checkpoint"))
    found.compile = _is_compiled(settings.section("compile"))
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


def _sizes(section: Settings) -> dict[str, int]:
    """Size of each dimension of the mesh."""
    usual = {"dp_shard": -1}
    return {name: section.take_whole(key, usual.get(name, 1)) or 1 for name, key in _DEGREES.items()}


def _fit(section: Settings, sizes: dict[str, int]) -> None:
    """Change *sizes* to those of a suite, which has fewer kinds of mesh."""
    for outer, inner in _LACKING.items():
        if min(sizes[outer], sizes[inner]) > 1:
            section.leave(
                _DEGREES[inner], f"{sizes[inner]}: a suite has no {inner} inside {outer}", "training"
            )
            sizes[inner] = 1
    if sizes["pp"] > 1 and sizes["dp_shard"] < 0:
        sizes["dp_shard"] = _LEAST_SHARDS
        section.leave(
            _DEGREES["dp_shard"],
            f"-1: a suite with a pipeline gives the number of shards; yours has {_LEAST_SHARDS} on "
            f"{_ranks(sizes)} devices: for more, raise mesh.dp_shard and world_sizes together",
            "training",
        )


def _ranks(sizes: Mapping[str, int]) -> int | None:
    """Number of ranks; None: ``-1`` leaves it open."""
    return math.prod(max(size, 1) for size in sizes.values()) if sizes["dp_shard"] > 0 else None


def _batch(training: Settings, sizes: Mapping[str, int], local: int) -> dict[str, int]:
    """The batch, of which ranks with the same rows have *local* in a pass.

    A file without the global batch does not accumulate gradients.
    """
    if (whole := training.take_whole("global_batch_size", -1) or -1) > 0:
        return {"micro_batch_size": local, "global_batch_size": whole}
    sharing = math.prod(max(sizes[name], 1) for name in ("pp", "cp", "tp"))
    # the alternatives, which share no rows, can't have micro-batches of that size: theirs are derived
    batch = {"micro_batch_size": local} if sharing == 1 else {}
    if ranks := _ranks(sizes):
        return batch | {"global_batch_size": local * ranks // sharing}
    each = max(1, local // sharing)
    if each * sharing != local:
        why = f"{local} for {sharing} devices with the same samples: the suite has {each} for each device"
        training.leave("local_batch_size", why, "training")
    return batch | {"per_device_batch_size": each}


def _clipping(training: Settings) -> dict[str, float]:
    """Norm to which gradients are clipped; torchtitan clips by default, and with infinity only measures."""
    given = training.take("max_norm", 1.0)
    if given == math.inf:
        return {}
    norm = training.merged({"max_norm": given}).take_number("max_norm", 1.0) or 0.0
    if norm <= 0:
        training.leave("max_norm", f"{norm:g}: the suite does not clip", "training")
        return {}
    return {"clip_grad_norm": norm}


def _precision(training: Settings, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Dtypes: parameters in bf16 and reduction in fp32 by default, which only FSDP's policy has."""
    names = {"mixed_precision_param": "compute", "mixed_precision_reduce": "reduce", "dtype": "master"}
    usual = {"compute": "bf16", "reduce": "fp32", "master": "fp32"}
    for theirs, ours in names.items():
        named = training.take(theirs)
        if named is not None and str(named) not in _DTYPES:
            training.leave(theirs, f"{named!r}: the suite has {usual[ours]}", "training")
        usual[ours] = _DTYPES.get(str(named), usual[ours])
    if usual["master"] != "fp32":
        usual["optimizer_state"] = usual["master"]
    # ranks of cp also shard the model
    if sizes["dp_shard"] != 1 or sizes["cp"] > 1:
        return usual
    compute, master = usual["compute"], usual["master"]
    is_split = max(sizes["tp"], sizes["pp"]) > 1
    if compute != master:
        split = f"torchtitan computes tensor and pipeline parallelism in {master}, and so does the suite"
        whole = "it is torch.autocast in torchtitan; the suite casts every parameter"
        why = f"{compute}: without FSDP, {split if is_split else whole}"
        training.leave("mixed_precision_param", why, "training")
    return usual | {"compute": master if is_split else compute, "reduce": master}


def _float8(settings: Settings, is_on: bool) -> dict[str, Any]:
    """Recipe of torchao's converter, if the model is converted."""
    quantize = settings.section("quantize")
    linear = quantize.section("linear")
    section = linear.section("float8")
    recipe, emulated = str(section.take("recipe_name", "tensorwise")), bool(section.take("emulate", False))
    # torchtitan converts the head too if no filter excludes it
    filtered = section.take("filter_fqns", [])
    gathered = section.take("enable_fsdp_float8_all_gather", False)
    if is_on and filtered != ["output"]:
        section.leave("filter_fqns", f"{filtered}: a suite converts all layers but the head", "training")
    if is_on and gathered:
        why = "a suite gathers parameters before it rounds them to float8"
        section.leave("enable_fsdp_float8_all_gather", why, "speed")
    for each in (section, linear, quantize):
        each.leave_rest()
    return {"float8": recipe, **({"float8_emulated": True} if emulated else {})} if is_on else {}


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
    total = section.take_whole("total_steps", total) or total
    warmup = min(section.take_whole("warmup_steps", 200) or 0, total)
    share, kind = section.take_number("decay_ratio"), str(section.take("decay_type", "linear"))
    least = section.take_number("min_lr_factor", 0.0) or 0.0
    section.leave_rest()
    decay = total - warmup if share is None else min(round(total * share), total - warmup)
    if least == 1 or decay <= 0:
        return {"warmup_steps": warmup}
    whole = decay == total - warmup
    if kind not in ("linear", "cosine") or (kind == "cosine" and not whole):
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


def _is_compiled(section: Settings) -> bool:
    """True if the model is compiled."""
    is_on, parts = bool(section.take("enable", False)), section.take("components", ["model", "loss"])
    if is_on and parts != ["model"]:
        section.leave("components", f"{parts}: a suite compiles layers of the model alone", "speed")
    section.leave_rest()
    return is_on and isinstance(parts, list) and "model" in parts


def _strategy(section: Settings, training: Settings, sizes: Mapping[str, int], local: int) -> PluginChoice:
    """The strategy with *sizes* of its mesh."""
    over = {name: size for name, size in sizes.items() if size > 1}
    offload = bool(training.take("enable_cpu_offload", False))
    resharding = str(section.take("fsdp_reshard_after_forward", "default"))
    if resharding not in ("default", "always", "never"):
        section.leave("fsdp_reshard_after_forward", f"{resharding}: the suite has torch's default", "speed")
    if "pp" in over:
        choice = _pipeline(section, over, local, resharding)
    elif "cp" in over:
        choice = _ring(section, over)
    elif not over and sizes["dp_shard"] == 1:
        choice = PluginChoice("single")
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
    return choice


def _undo_scale(found: DescribedTraining, length: int) -> None:
    """Set clipping, eps and a coupled weight decay for gradients that are means, as those of a suite are.

    torchtitan 0.2.2 does not divide those of a pipeline by the tokens of an update, and divides those of
    DDP by the ranks once more.
    """
    spec, factor = found.optimizer, 1.0
    scaled = ("clip_grad_norm", "eps", *(["weight_decay"] if spec["name"] == "adam" else []))
    if found.strategy.name == "ddp":
        factor = float(found.world_size or 1)
    elif found.strategy.name == "pp":
        factor = 1 / (length * found.batch["global_batch_size"])
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
    if "dp_replicate" in over:
        why = f"{over['dp_replicate']}: a suite shards over all ranks beside cp"
        section.leave(_DEGREES["dp_replicate"], why, "training")
    return PluginChoice("cp", {"implementation": "ring", "sharded": True, "mesh": {"cp": over["cp"]}})


def _pipeline(section: Settings, over: Mapping[str, int], local: int, resharding: str) -> PluginChoice:
    """Pipeline with its schedule, and the dimensions inside its ranks."""
    size = section.take_whole("pipeline_parallel_microbatch_size", 1) or 1
    named = str(section.take("pipeline_parallel_schedule", "1F1B"))
    if (schedule := _SCHEDULES.get(named.lower())) is None:
        section.leave("pipeline_parallel_schedule", f"{named}: the suite has 1F1B", "speed")
    inner = {name: size for name, size in over.items() if name != "pp"}
    options: dict[str, Any] = {
        "schedule": schedule or "1F1B",
        "micro_batches": max(1, local // size),
        **({"mesh": inner} if inner else {}),
    }
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
