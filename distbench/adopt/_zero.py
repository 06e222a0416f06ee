"""DeepSpeed's configuration of a ``zero`` case, shared by all formats that hand one on."""

from __future__ import annotations

from typing import Any

from distbench.adopt.base import Measured
from distbench.case import Case
from distbench.strategies._zero_config import configuration, open_sizes
from distbench.strategies.zero import Zero

FILE = "ds_config.json"


def config(measured: Measured) -> dict[str, Any]:
    """Return DeepSpeed's configuration with every hyper-parameter explicit.

    Sizes that the suite left open are those that the live engine had; one that nobody told is left
    out, and ``differs`` says so.
    """
    zero = _strategy(measured)
    told = {key: size for key in open_sizes(zero) if (size := measured.told(key)) is not None}
    return {**configuration(zero, measured.case, told), "optimizer": _optimizer(measured)}


def differs(measured: Measured) -> list[str]:
    """Return what of a case DeepSpeed's own configuration can't say."""
    case, zero = measured.case, _strategy(measured)
    found = [
        f"the record doesn't tell {key}: DeepSpeed's default stands"
        for key in open_sizes(zero)
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
