"""``TrainingArguments`` of transformers as JSON, read as a training.

https://huggingface.co/docs/transformers/main_classes/trainer
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from distbench.core.case import PluginChoice
from distbench.suite.configurations.accelerate_yaml import autocast, read_fsdp
from distbench.suite.configurations.deepspeed_json import read_deepspeed
from distbench.suite.configurations.settings import DescribedTraining, Settings
from distbench.suite.configurations.trainer_rows import row_options, row_tokens

_WITHOUT_EFFECT = (
    *("output_dir", "overwrite_output_dir", "do_train", "do_eval", "do_predict", "run_name", "report_to"),
    *("disable_tqdm", "seed", "data_seed", "resume_from_checkpoint", "local_rank", "no_cuda"),
    *("ddp_backend", "ddp_timeout", "ddp_broadcast_buffers", "num_train_epochs", "debug"),
    *("remove_unused_columns", "label_names", "past_index", "prediction_loss_only", "metric_for_best_model"),
    *("load_best_model_at_end", "greater_is_better", "skip_memory_metrics", "ignore_data_skip", "project"),
    *("gradient_checkpointing_kwargs", "length_column_name", "mp_parameters"),
)
_PREFIXES_WITHOUT_EFFECT = (
    *("logging_", "log_", "save_", "eval_", "evaluation_", "hub_", "push_to_hub", "include_", "tpu_"),
    *("per_device_eval_", "ray_", "trackio_", "batch_eval_", "restore_"),
)
_OPTIMIZERS = {
    "adamw_torch": {"name": "adamw", "kernel": "foreach"},
    "adamw_torch_fused": {"name": "adamw"},
    "sgd": {"name": "sgd"},
    "adafactor": {"name": "adafactor"},
    "lion_32bit": {"name": "lion"},
}
_SCHEDULE = ("schedule", "warmup_steps", "total_steps")
_OFF: tuple[Any, ...] = (None, False, "", 0, [], {})


def is_trainer(settings: Mapping[str, Any]) -> bool:
    """True if *settings* are ``TrainingArguments``."""
    return any(key in settings for key in ("per_device_train_batch_size", "output_dir"))


def read_trainer(
    given: Mapping[str, Any], read_json: Callable[[str], Mapping[str, Any]]
) -> DescribedTraining:
    """The training that the arguments *given* describe; *read_json* reads a file of DeepSpeed by its name.

    Raises:
        SettingError: a value is neither true nor false.
    """
    off = {key for key, value in given.items() if value in _OFF and key not in _MEANINGFUL}
    quiet = {key for key in given if key.startswith(_PREFIXES_WITHOUT_EFFECT)}
    found = DescribedTraining(PluginChoice("ddp"), engine="trainer")
    settings = Settings({key: given[key] for key in given if key not in off | quiet}, found.left_out)
    settings.ignore(_WITHOUT_EFFECT)
    found.optimizer = _optimizer(settings)
    if settings.take_flag("gradient_checkpointing"):
        found.activation_checkpointing = "full"
    found.compile = settings.take_flag("torch_compile")
    micro = settings.take_whole("per_device_train_batch_size", 8) or 8
    steps = settings.take_whole("gradient_accumulation_steps", 1) or 1
    found.batch = {"per_device_batch_size": micro * steps, "micro_batch_size": micro}
    compute = "bf16" if settings.take_flag("bf16") else "fp16" if settings.take_flag("fp16") else "no"
    found.precision = autocast(compute)
    is_tf32 = settings.take_flag("tf32")
    _set_strategy(found, settings, compute, read_json)
    if is_tf32:
        found.precision["matmul"] = "high"
    found.loader = _loader(settings)
    found.length = row_tokens(settings)
    found.data = row_options(settings, found.length)
    settings.leave_rest()
    return found


def _loader(settings: Settings) -> dict[str, Any]:
    """Section ``loader``, if the arguments name any workers."""
    workers = settings.take_whole("dataloader_num_workers")
    loader: dict[str, Any] = {"workers": workers} if workers else {}
    # a global batch of a suite is always whole
    settings.ignore(["dataloader_drop_last"])
    if settings.take_flag("dataloader_persistent_workers") and loader:
        loader["persistent_workers"] = True
    pins, on_cpu = settings.take("dataloader_pin_memory"), settings.take_flag("use_cpu")
    if pins and loader and not on_cpu:
        loader["pin_memory"] = True
    elif pins is None and loader and not on_cpu:
        reason = "missing: true, as the Trainer has it; set loader.pin_memory: true for GPUs"
        settings.leave("dataloader_pin_memory", reason, "speed")
    if (ahead := settings.take_whole("dataloader_prefetch_factor")) and loader:
        loader["prefetch_factor"] = ahead
    return loader


_MEANINGFUL = ("dataloader_pin_memory", "max_grad_norm", "ddp_find_unused_parameters", "weight_decay")
"""Arguments of which 0 or false is a choice."""


def _set_strategy(
    found: DescribedTraining,
    settings: Settings,
    compute: str,
    read_json: Callable[[str], Mapping[str, Any]],
) -> None:
    """Set the strategy of *found*, and what that decides."""
    deepspeed, fsdp = settings.take("deepspeed"), settings.take("fsdp")
    config = settings.section("fsdp_config")
    if deepspeed:
        given = deepspeed if isinstance(deepspeed, Mapping) else read_json(str(deepspeed))
        zero = read_deepspeed(_filled(given, found, compute))
        found.optimizer = _of_trainer(found.optimizer, given) | zero.optimizer
        left = [each for each in zero.left_out if each.key != "optimizer"]
        found.strategy, found.precision = zero.strategy, zero.precision
        found.left_out += left
    elif fsdp:
        words = str(fsdp).lower().split()
        named = [word.upper() for word in words if word.endswith(("shard", "grad_op"))]
        options = {"sharding_strategy": named[0]} if named else {}
        if not {"version", "fsdp_version"} & {*config.keys}:
            config.leave("version", "missing: FSDP2, as in transformers 5; before that it was FSDP1", "speed")
        asked = {"cpu_offload": True} if "offload" in words else {}
        sharded = read_fsdp(config.merged({**options, **asked}), compute, usual_version=2)
        found.strategy, found.precision = sharded.strategy, sharded.precision
        if sharded.activation_checkpointing != "none":
            found.activation_checkpointing = sharded.activation_checkpointing
        found.left_out += sharded.left_out
    else:
        config.ignore(config.keys)
        found.strategy = PluginChoice("ddp", _ddp_options(settings, found))


def _of_trainer(optimizer: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Part of *optimizer* that the Trainer decides beside the file *given*: never clipping."""
    schedule = {key for key in optimizer if key in _SCHEDULE} if "scheduler" not in given else set()
    itself = {key for key in optimizer if key not in _SCHEDULE} if "optimizer" not in given else set()
    return {key: optimizer[key] for key in optimizer if key in (schedule | itself) - {"clip_grad_norm"}}


def _ddp_options(settings: Settings, found: DescribedTraining) -> dict[str, Any]:
    # by default the Trainer looks for them, unless layers are recomputed
    unused = settings.take("ddp_find_unused_parameters", found.activation_checkpointing == "none")
    options: dict[str, Any] = {"find_unused_parameters": True} if unused else {}
    if cap := settings.take_number("ddp_bucket_cap_mb"):
        options["bucket_cap_mb"] = cap
    if settings.take_flag("ddp_static_graph"):
        options["static_graph"] = True
    return options


def _filled(given: Mapping[str, Any], found: DescribedTraining, compute: str) -> dict[str, Any]:
    """Settings of DeepSpeed, with the arguments of the Trainer for each ``auto``."""
    spec, micro = found.optimizer, found.batch["micro_batch_size"]
    by_key: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": found.batch["per_device_batch_size"] // micro,
        "gradient_clipping": spec.get("clip_grad_norm", 0),
        **{key: spec[key] for key in ("lr", "eps", "weight_decay", "betas") if key in spec},
        "warmup_num_steps": spec.get("warmup_steps", 0),
        "warmup_max_lr": spec["lr"],
        "warmup_min_lr": 0,
        "total_num_steps": spec.get("total_steps", "auto"),
    }

    def fill(section: Mapping[str, Any], enabled: bool | None = None) -> dict[str, Any]:
        filled: dict[str, Any] = {}
        for key, value in section.items():
            if isinstance(value, Mapping):
                is_on = {"bf16": compute == "bf16", "fp16": compute == "fp16"}.get(key)
                filled[key] = fill(value, is_on)
            elif value == "auto":
                filled[key] = enabled if key == "enabled" and enabled is not None else by_key.get(key, "auto")
            else:
                filled[key] = value
        return filled

    return {key: value for key, value in fill(given).items() if (key, value) != ("train_batch_size", "auto")}


def _optimizer(settings: Settings) -> dict[str, Any]:
    kind = str(settings.take("optim", "adamw_torch_fused"))
    optimizer: dict[str, Any] = {**_OPTIMIZERS.get(kind, {"name": "adamw"})}
    if kind not in _OPTIMIZERS:
        settings.leave("optim", f"{kind}: the suite has AdamW", "training")
    # the defaults of the Trainer
    optimizer["lr"] = settings.take_number("learning_rate", 5e-5)
    betas = [settings.take_number(f"adam_beta{n}", usual) for n, usual in ((1, 0.9), (2, 0.999))]
    eps = settings.take_number("adam_epsilon", 1e-8)
    if optimizer["name"] == "adamw":
        optimizer |= {"betas": betas, "eps": eps}
    optimizer["weight_decay"] = settings.take_number("weight_decay", 0.0)
    if clipping := settings.take_number("max_grad_norm", 1.0):
        optimizer["clip_grad_norm"] = clipping
    return optimizer | _schedule(settings)


def _schedule(settings: Settings) -> dict[str, Any]:
    kind = str(settings.take("lr_scheduler_type", "linear"))
    total, warm = settings.take_whole("max_steps", -1) or -1, settings.take_number("warmup_steps", 0) or 0
    share = settings.take_number("warmup_ratio", 0) or (warm if warm < 1 else 0)
    steps = round(share * total) if share and total > 0 else int(warm)
    if share and total <= 0:
        settings.leave("warmup_ratio", "the number of steps is not in the file: no warm-up", "training")
    warmup = {"warmup_steps": steps} if steps and kind != "constant" else {}
    if kind in ("constant", "constant_with_warmup"):
        return warmup
    if kind in ("linear", "cosine") and total > 0:
        return {"schedule": kind, "total_steps": total, **warmup}
    if kind == "inverse_sqrt" and steps:
        return {"schedule": kind, **warmup}
    why = "the number of steps is not in the file" if kind in ("linear", "cosine") else "a suite lacks it"
    settings.leave("lr_scheduler_type", f"{kind}, but {why}: the learning rate stays constant", "training")
    return warmup
