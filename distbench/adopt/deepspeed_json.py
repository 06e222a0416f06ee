"""``deepspeed``: the file for ``deepspeed.initialize(config=...)``, which other formats include."""

from __future__ import annotations

from typing import Any

from distbench.adopt import base
from distbench.adopt.base import ExportedCase, ExportedFiles
from distbench.core import lr_schedule
from distbench.strategies.zero import Zero
from distbench.strategies.zero.config import NVME_SIZES, configuration, optional_sizes

FILE = "ds_config.json"


def problems(measured: ExportedCase) -> list[str]:
    """Reasons why DeepSpeed's configuration can't express this case."""
    problem = (
        f"{measured.case.strategy.name} does not run on DeepSpeed; its stage 0 (data parallelism) or 3 "
        "(full sharding) would not be the measured case"
    )
    return [] if measured.zero else [problem]


def write(measured: ExportedCase) -> ExportedFiles:
    """The case as ``ds_config.json``."""
    case = measured.case
    hosts = [f"--num_nodes={measured.nodes}", "--hostfile=HOSTFILE"] if measured.nodes > 1 else []
    gpus = f"--num_gpus={base.ranks_per_node(measured)}"
    launch = base.command(measured, "deepspeed", *hosts, gpus, "train.py")
    advice = (
        *measured.size_notes,
        f"In train.py: engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), "
        f'config="{FILE}"); then for each micro-batch engine.backward(loss) and engine.step().',
        *base.COMMON_NOTES,
        *notes(measured),
    )
    launch = base.torchrun(measured) if case.device == "cpu" else launch
    return ExportedFiles(files(measured), launch, advice, tuple(differs(measured)))


def files(measured: ExportedCase) -> dict[str, str]:
    """DeepSpeed's configuration with every hyperparameter explicit; none for a different strategy.

    Sizes that the suite left unset are those of the live engine. A size that the record doesn't have is left
    out, and ``differs`` lists it.
    """
    if not (zero := measured.zero):
        return {}
    sizes = {key: size for key in optional_sizes(zero) if (size := measured.resolved_size(key)) is not None}
    on_disk = {key: size for key in NVME_SIZES if type(size := measured.effective.get(key)) is int}
    config = configuration(zero, measured.case, {**sizes, **on_disk})
    if measured.effective.get("dtypes", {}).get("gradients") == measured.case.precision.compute:
        # the default; records from before the option existed don't state it
        config.pop("data_types", None)
    config["optimizer"] = _optimizer(measured, zero)
    return {FILE: base.as_json(config)}


def differs(measured: ExportedCase, *, with_schedule: bool = False) -> list[str]:
    """Settings of a case that DeepSpeed's configuration can't express; none for a different strategy.

    *with_schedule*: a script next to the configuration sets the schedule of the learning rate.
    """
    case = measured.case
    if not (zero := measured.zero):
        return []
    unknown = [
        f"{key} is not in the record; DeepSpeed's default applies"
        for key in optional_sizes(zero)
        if measured.resolved_size(key) is None
    ]
    starts_late = zero.stage == 0 and case.precision.compute in ("bf16", "fp16")
    scale = case.precision.loss_scale or 1.0
    factor = "engine.optimizer.loss_scale" if scale == "dynamic" else f"{scale:g}"
    is_cpu_adam = zero.optimizer_kernel == "deepspeed" and case.device == "cpu"
    sentences = {
        f"the case's learning rate follows {lr_schedule.schedule_text(case.optimizer)}, which no "
        "scheduler of DeepSpeed supports. This file has no scheduler, so the rate is constant. Pass "
        "lr_scheduler=lambda optimizer: LambdaLR(optimizer, rate) to deepspeed.initialize, with rate "
        "as --as torch writes it": (lr_schedule.is_scheduled(case.optimizer) and not with_schedule),
        "in stage 0 with 16-bit parameters DeepSpeed (observed with 0.19.8) starts with a step without "
        "gradients, which decays the weights and counts as a step in Adam; the measured case reverted "
        "it. With this file the first update is 0.7x as large": starts_late,
        "in stage 0 with fp16 DeepSpeed (observed with 0.19.8) divides the gradients by the loss "
        "scale, but never multiplies the loss by it, so updates are too small by that factor; the "
        f"measured case multiplied it. Call engine.backward(loss * {factor})": zero.stage == 0 and scale != 1,
        "the case used DeepSpeedCPUAdam, which a configuration selects only with offload; "
        "this file gives FusedAdam, the same algorithm with different rounding": is_cpu_adam
        and zero.offload_optimizer == "none",
    }
    return [*unknown, *base.applicable(sentences)]


def notes(measured: ExportedCase) -> list[str]:
    """Steps that a script needs in addition to the configuration; none for a different strategy."""
    case, precision = measured.case, measured.case.precision
    if not (zero := measured.zero):
        return []
    always = [
        f"Call torch.manual_seed({case.seed}) before building the model: DeepSpeed's file has no seed.",
        f"DeepSpeed keeps {precision.master} master weights and {precision.optimizer_state} optimizer state "
        "by itself, as in the measured case.",
    ]
    recomputes, ranks = case.activation_checkpointing, case.world_size // measured.data_ranks
    global_batch, shares_rows = case.batch.global_batch_size, measured.uses_autotp
    on_disk = "nvme" in (zero.offload_optimizer, zero.offload_parameters)
    sentences = {
        "Build a model that is too large for one device under "
        f'deepspeed.zero.Init(config_dict_or_path="{FILE}").': zero.stage == 3,
        f"Activation checkpointing ({recomputes}): DeepSpeed leaves it to the model. Run each layer in "
        "torch's checkpoint, as in the output of --as torch.": recomputes != "none",
        (
            f"torch.compile ({case.compile}): compile each layer in the script, as in the output of --as "
            "torch."
        ): (case.compile != "none"),
        (
            f"float8 ({precision.float8}): convert the linear layers in the script, as in the output of "
            "--as torch."
        ): (precision.float8 != "none"),
        f"Groups of {ranks} neighbouring ranks process the same samples: rank // {ranks} selects a "
        "rank's micro-batches. tensor_parallel names the layers of the measured model: replace them "
        f"with yours. train_batch_size ({global_batch}) is omitted, because DeepSpeed would count all "
        "ranks.": shares_rows,
        "nvme_path is a folder on the measured machine; replace it with your own.": on_disk,
    }
    return [*always, *base.applicable(sentences)]


def _optimizer(measured: ExportedCase, zero: Zero) -> dict[str, Any]:
    class_, hyperparameters, kernel = base.optimizer(measured.case.optimizer)
    name = class_.rpartition(".")[2]
    if name == "AdamW" and zero.optimizer_kernel == "deepspeed":
        return {"type": name, "params": hyperparameters}
    # DeepSpeed's Adam is AdamW by default
    own = {"AdamW": {"torch_adam": True}, "Adam": {"torch_adam": True, "adam_w_mode": False}}.get(name, {})
    return {"type": name, "params": {**hyperparameters, **own, **kernel}}
