"""Accelerate's YAML (``accelerate config``), read as a training.

https://huggingface.co/docs/accelerate/package_reference/cli and the plug-ins that it names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from distbench.core.case import PluginChoice
from distbench.suite.configurations.deepspeed_json import read_deepspeed
from distbench.suite.configurations.settings import DescribedTraining, LeftOut, Settings

_LAUNCH = (
    *("compute_environment", "machine_rank", "num_machines", "main_process_ip", "main_process_port"),
    *("main_training_function", "same_network", "rdzv_backend", "gpu_ids", "use_cpu", "debug", "tpu_env"),
    *("tpu_use_cluster", "tpu_use_sudo", "downcast_bf16", "enable_cpu_affinity", "deepspeed_hostfile"),
)
"""Keys on the launch, which a suite has in its own."""
_FSDP_WITHOUT_EFFECT = (
    *("auto_wrap_policy", "transformer_layer_cls_to_wrap", "cpu_ram_efficient_loading", "state_dict_type"),
    *("sync_module_states", "use_orig_params", "min_num_params"),
)
_XLA = ("xla", "xla_fsdp_v2", "xla_fsdp_grad_ckpt")
"""Switches that the Trainer writes with every file."""
_SHARDINGS = {
    **dict.fromkeys(("1", "FULL_SHARD", "True"), "full"),
    **dict.fromkeys(("2", "SHARD_GRAD_OP", "False"), "grad_op"),
    **dict.fromkeys(("4", "HYBRID_SHARD"), "hybrid"),
}
_DEEPSPEED_WITHOUT_EFFECT = (
    *("zero3_init_flag", "zero3_save_16bit_model", "deepspeed_multinode_launcher", "deepspeed_hostfile"),
)
_CLIPPING = 1.0
"""Norm to which Accelerate lets DeepSpeed clip if the file does not say."""


def is_accelerate(settings: Mapping[str, Any]) -> bool:
    """True if *settings* are of Accelerate."""
    return "distributed_type" in settings or "compute_environment" in settings


def read_accelerate(
    given: Mapping[str, Any], read_json: Callable[[str], Mapping[str, Any]]
) -> DescribedTraining:
    """The training that the settings *given* describe; *read_json* reads a file of DeepSpeed by its name."""
    left_out: list[LeftOut] = []
    settings = Settings(given, left_out)
    settings.ignore(_LAUNCH)
    kind = str(settings.take("distributed_type", "NO"))
    compute = str(settings.take("mixed_precision", "no"))
    if compute not in ("no", "bf16", "fp16"):
        settings.leave("mixed_precision", f"{compute}: the suite has bf16", "training")
        compute = "bf16"
    ranks = settings.take_whole("num_processes")
    if kind == "DEEPSPEED":
        training = _deepspeed(settings.section("deepspeed_config"), compute, read_json)
    elif kind == "FSDP":
        training = read_fsdp(settings.section("fsdp_config"), compute)
    else:
        training = DescribedTraining(PluginChoice("ddp" if kind.startswith("MULTI") else "single"))
        training.precision = autocast(compute)
        if kind != "NO" and not kind.startswith("MULTI"):
            settings.leave("distributed_type", f"{kind}: the suite has no such strategy", "training")
    settings.leave_rest()
    training.left_out[:0] = left_out
    training.world_size = ranks
    training.engine = "accelerate"
    return training


def autocast(compute: str) -> dict[str, Any]:
    """Section ``precision`` of the mixed precision *compute*, or ``no``."""
    if compute == "fp16":
        # the scaler that Accelerate makes
        return {"compute": "fp16", "loss_scale": "dynamic", "loss_scale_window": 2000}
    return {"compute": "bf16" if compute == "bf16" else "fp32"}


def read_fsdp(section: Settings, compute: str, usual_version: int = 1) -> DescribedTraining:
    """The training with the settings of FSDP in *section*.

    Args:
        compute: The mixed precision, or ``no``.
        usual_version: Version of FSDP if the settings do not say.
    """
    found = DescribedTraining(PluginChoice("fsdp"))
    settings = section.without_prefix("fsdp_", found.left_out)
    settings.ignore(_FSDP_WITHOUT_EFFECT)
    version = settings.take_whole("version", usual_version)
    sharding = str(settings.take("sharding_strategy", settings.take("reshard_after_forward", "FULL_SHARD")))
    settings.ignore(("reshard_after_forward",))
    options: dict[str, Any] = {} if version == 2 else {"version": 1}
    if (known := _SHARDINGS.get(sharding)) is None:
        settings.leave("sharding_strategy", f"{sharding}: the suite shards fully", "memory")
    elif known != "full":
        options["sharding"] = known
    if settings.take("offload_params", False) or settings.take("cpu_offload", False):
        options["cpu_offload"] = True
    if settings.take("activation_checkpointing", False):
        found.activation_checkpointing = "full"
    for key, usual in (("backward_prefetch", "backward_pre"), ("forward_prefetch", "false")):
        if key in settings and str(settings.take(key)).lower() != usual:
            settings.leave(key, "a suite prefetches as FSDP does by default", "speed")
    settings.ignore(("backward_prefetch_policy",))
    for key in _XLA:
        settings.leave_unless(key, False, "a suite has no XLA", "training")
    settings.leave_rest()
    # its policy of mixed precision has one dtype for parameters and reduction
    found.precision = {**autocast(compute), "reduce": compute} if compute != "no" else {"compute": "fp32"}
    found.strategy = PluginChoice("fsdp", options)
    return found


def _deepspeed(
    section: Settings, compute: str, read_json: Callable[[str], Mapping[str, Any]]
) -> DescribedTraining:
    section.ignore(_DEEPSPEED_WITHOUT_EFFECT)
    if file := section.take("deepspeed_config_file"):
        section.leave_rest()
        return read_deepspeed(read_json(str(file)))
    zero: dict[str, Any] = {"stage": section.take("zero_stage", 2)}
    for theirs, ours in (("offload_optimizer", "offload_optimizer"), ("offload_param", "offload_param")):
        zero[ours] = {
            "device": section.take(f"{theirs}_device", "none"),
            "nvme_path": section.take(f"{theirs}_nvme_path"),
        }
    settings = {
        "zero_optimization": zero,
        "gradient_accumulation_steps": section.take("gradient_accumulation_steps", 1),
        "gradient_clipping": section.take("gradient_clipping", _CLIPPING),
        **({compute: {"enabled": True}} if compute != "no" else {}),
    }
    section.leave_rest()
    return read_deepspeed(settings)
