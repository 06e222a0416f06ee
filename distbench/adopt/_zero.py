"""DeepSpeed's configuration of a ``zero`` case, shared by all formats that hand one on."""

from __future__ import annotations

from typing import Any

from distbench.adopt.base import Measured
from distbench.case import Case
from distbench.strategies.zero import Zero

FILE = "ds_config.json"


def config(measured: Measured) -> dict[str, Any]:
    """Return DeepSpeed's configuration with every hyper-parameter explicit.

    Sizes that the suite left open are those that the live engine had; one that nobody told is left
    out, and ``differs`` says so.
    """
    case = measured.case
    return {
        "train_batch_size": case.batch.global_batch_size,
        "train_micro_batch_size_per_gpu": case.batch.micro_batch_size,
        "gradient_accumulation_steps": case.batch.gradient_accumulation_steps,
        # unset it would clip at 1.0; 0 is never
        "gradient_clipping": case.optimizer.clip_grad_norm or 0.0,
        "communication_data_type": case.precision.reduce,
        "bf16": {"enabled": case.precision.compute == "bf16"},
        # a scale of 0 would be a dynamic one
        "fp16": {"enabled": case.precision.compute == "fp16", "loss_scale": case.precision.loss_scale or 1.0},
        "optimizer": _optimizer(measured),
        # torch's optimizers, SGD and those under offload too, instead of DeepSpeed's kernels
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "wall_clock_breakdown": False,
        "steps_per_print": None,
        "zero_optimization": _section(measured),
    }


def differs(measured: Measured) -> list[str]:
    """Return what of a case DeepSpeed's own configuration can't say."""
    case, zero = measured.case, _strategy(measured)
    found = [
        f"the record doesn't tell {key}: DeepSpeed's default stands"
        for key in _sizes(zero)
        if measured.told(key) is None
    ]
    if zero.stage == 0 and case.precision.compute in ("bf16", "fp16"):
        found.append(
            "in stage 0 with 16-bit parameters DeepSpeed (seen with 0.19.8) begins with a step without "
            "gradients, which decays the weights and stays counted in Adam; the measured case took it "
            "back: from this file the first update is 0.7 times as large"
        )
    if zero.optimizer_kernel == "deepspeed" and case.device == "cpu" and zero.offload_optimizer == "none":
        found.append(
            "the case had DeepSpeedCPUAdam, which a configuration picks under offload only: "
            "from this file it is FusedAdam, the same algorithm with other rounding"
        )
    return found


def notes(measured: Measured) -> list[str]:
    """Return what a script has to do beside the configuration."""
    case, zero = measured.case, _strategy(measured)
    precision = case.precision
    found = [
        f"Seed {case.seed}, by torch.manual_seed before the model is built: DeepSpeed's file has none.",
        f"DeepSpeed keeps {precision.master} master weights and {precision.optimizer_state} optimizer state "
        "by itself, as in the measured case.",
    ]
    if zero.stage == 3:
        found.append(
            "A model too large for one device is built under "
            f'deepspeed.zero.Init(config_dict_or_path="{FILE}").'
        )
    if case.activation_checkpointing == "full":
        found.append(
            "Activation checkpointing, full: DeepSpeed leaves it to the model. Wrap each layer in torch's "
            "checkpoint_wrapper, as --as torch writes it."
        )
    if "nvme" in (zero.offload_optimizer, zero.offload_parameters):
        found.append("nvme_path is a folder of the machine that was measured: put in your own.")
    return found


def variables(case: Case) -> dict[str, str]:
    """Return the environment variables that DeepSpeed needs: it picks a device by what it can import."""
    return {"DS_ACCELERATOR": "cpu"} if case.device == "cpu" else {}


def _strategy(measured: Measured) -> Zero:
    assert isinstance(measured.strategy, Zero)
    return measured.strategy


def _optimizer(measured: Measured) -> dict[str, Any]:
    spec = measured.case.optimizer
    kernel = {"fused": spec.kernel == "fused", "foreach": spec.kernel == "foreach"}
    if spec.name == "sgd":
        shared = {"lr": spec.lr, "momentum": spec.momentum, "weight_decay": spec.weight_decay}
        return {"type": "SGD", "params": {**shared, **kernel}}
    adam = {"lr": spec.lr, "betas": list(spec.betas), "eps": spec.eps, "weight_decay": spec.weight_decay}
    if _strategy(measured).optimizer_kernel == "deepspeed":
        return {"type": "AdamW", "params": adam}
    return {"type": "AdamW", "params": {**adam, "torch_adam": True, **kernel}}


def _sizes(zero: Zero) -> dict[str, str]:
    """Return the sizes that a suite may leave open: our name -> DeepSpeed's."""
    sizes = {"reduce_bucket_size": "reduce_bucket_size", "allgather_bucket_size": "allgather_bucket_size"}
    if zero.stage == 3:
        sizes["max_live_parameters"] = "stage3_max_live_parameters"
        sizes["prefetch_bucket_size"] = "stage3_prefetch_bucket_size"
    return sizes


def _section(measured: Measured) -> dict[str, Any]:
    zero = _strategy(measured)
    section: dict[str, Any] = {
        "stage": zero.stage,
        "overlap_comm": zero.overlap_comm,
        "contiguous_gradients": True,
        "reduce_scatter": True,
    }
    for key, theirs in _sizes(zero).items():
        if (size := measured.told(key)) is not None:
            section[theirs] = size
    if zero.stage == 3:
        section["stage3_param_persistence_threshold"] = zero.param_persistence_threshold
        section["stage3_max_reuse_distance"] = zero.max_reuse_distance
    places = {"offload_optimizer": zero.offload_optimizer, "offload_param": zero.offload_parameters}
    for theirs, place in places.items():
        if place != "none":
            folder = {"nvme_path": zero.nvme_path} if place == "nvme" else {}
            section[theirs] = {"device": place, "pin_memory": measured.case.device == "cuda", **folder}
    return section
