"""``deepspeed``: the file for ``deepspeed.initialize(config=...)``, which other formats include."""

from __future__ import annotations

from typing import Any

from distbench.adopt.base import COMMON_NOTES, Adopted, Measured, as_json, command, torchrun
from distbench.case import Case
from distbench.strategies.zero import Zero
from distbench.strategies.zero.config import configuration, open_sizes

STRATEGIES = (Zero,)
FILE = "ds_config.json"


def problem(measured: Measured) -> str | None:
    """Why DeepSpeed's configuration can't express this case, or None."""
    if not isinstance(measured.strategy, Zero):
        return (
            f"{measured.case.strategy.name} does not run on DeepSpeed; its stage 0 (data parallelism) or 3 "
            "(full sharding) would not be the case that was measured"
        )
    return None


def write(measured: Measured) -> Adopted:
    """The case as ``ds_config.json``."""
    case = measured.case
    words = ("deepspeed", f"--num_gpus={case.world_size}", "train.py")
    launch = torchrun(case, **variables(case)) if case.device == "cpu" else command(case, *words)
    advice = (
        f"In train.py: engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), "
        f'config="{FILE}"); then for each micro-batch engine.backward(loss) and engine.step().',
        *COMMON_NOTES,
        *notes(measured),
    )
    files = {FILE: as_json(config(measured))}
    return Adopted(files, launch, advice, tuple(differs(measured)))


def config(measured: Measured) -> dict[str, Any]:
    """DeepSpeed's configuration with every hyperparameter explicit.

    Sizes that the suite left unset are those of the live engine. One that the record doesn't have is left
    out, and ``differs`` lists it.
    """
    zero = _strategy(measured)
    sizes = {key: size for key in open_sizes(zero) if (size := measured.value(key)) is not None}
    return {**configuration(zero, measured.case, sizes), "optimizer": _optimizer(measured)}


def differs(measured: Measured) -> list[str]:
    """Settings of a case that DeepSpeed's configuration can't express."""
    case, zero = measured.case, _strategy(measured)
    differences = [
        f"{key} is not in the record; DeepSpeed's default applies"
        for key in open_sizes(zero)
        if measured.value(key) is None
    ]
    if zero.stage == 0 and case.precision.compute in ("bf16", "fp16"):
        differences.append(
            "in stage 0 with 16-bit parameters DeepSpeed (observed with 0.19.8) starts with a step without "
            "gradients, which decays the weights and counts as a step in Adam; the measured case reverted "
            "it. From this file the first update is 0.7x as large"
        )
    if zero.optimizer_kernel == "deepspeed" and case.device == "cpu" and zero.offload_optimizer == "none":
        differences.append(
            "the case used DeepSpeedCPUAdam, which a configuration selects only with offload; "
            "this file gives FusedAdam, the same algorithm with different rounding"
        )
    return differences


def notes(measured: Measured) -> list[str]:
    """What a script has to do in addition to the configuration."""
    case, zero = measured.case, _strategy(measured)
    precision = case.precision
    lines = [
        f"Call torch.manual_seed({case.seed}) before building the model: DeepSpeed's file has no seed.",
        f"DeepSpeed keeps {precision.master} master weights and {precision.optimizer_state} optimizer state "
        "by itself, as in the measured case.",
    ]
    if zero.stage == 3:
        lines.append(
            "Build a model that is too large for one device under "
            f'deepspeed.zero.Init(config_dict_or_path="{FILE}").'
        )
    if case.activation_checkpointing == "full":
        lines.append(
            "Activation checkpointing (full): DeepSpeed leaves it to the model. Wrap each layer in torch's "
            "checkpoint_wrapper, as --as torch writes it."
        )
    if "nvme" in (zero.offload_optimizer, zero.offload_parameters):
        lines.append("nvme_path is a folder on the measured machine; replace it with your own.")
    return lines


def variables(case: Case) -> dict[str, str]:
    """Environment variables for DeepSpeed, which otherwise picks the device by what it can import."""
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
