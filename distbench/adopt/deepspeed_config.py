"""``deepspeed``: the file for ``deepspeed.initialize(config=...)``, which other formats include."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any

from distbench.adopt.exported_case import ExportedCase, ExportedFiles, optimizer
from distbench.adopt.instructions import COMMON_NOTES, command, ranks_per_node, torchrun
from distbench.core import lr_schedule
from distbench.core.units import format_number
from distbench.strategies.zero import Zero
from distbench.strategies.zero.config import DEEPSPEED_DEFAULTS, NVME_SIZES, configuration, optional_sizes

FILE = "ds_config.json"
_SIZES_SOURCE = "https://www.deepspeed.ai/docs/config-json"
_ZERO_IN_OLD_RECORDS = ("param_persistence_threshold", "max_reuse_distance")
"""Sizes that records of earlier versions have as 0 if the suite did not set them."""


def problems(measured: ExportedCase) -> Iterator[str]:
    """Yield the reason why DeepSpeed's configuration can't express this case."""
    if not measured.zero:
        yield (
            f"{measured.case.strategy.name} does not run on DeepSpeed; its stage 0 (data parallelism) or 3 "
            "(full sharding) would not be the measured case"
        )


def write(measured: ExportedCase) -> ExportedFiles:
    """The case as ``ds_config.json``."""
    case = measured.case
    hosts = [f"--num_nodes={measured.nodes}", "--hostfile=HOSTFILE"] if measured.nodes > 1 else []
    gpus = f"--num_gpus={ranks_per_node(measured)}"
    launch = command(measured, "deepspeed", *hosts, gpus, "train.py")
    advice = (
        *measured.size_notes,
        f"In train.py: engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), "
        f'config="{FILE}"); then for each micro-batch engine.backward(loss) and engine.step().',
        *COMMON_NOTES,
        *notes(measured),
    )
    launch = torchrun(measured) if case.device == "cpu" else launch
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
    return {FILE: json.dumps(config, indent=2) + "\n"}


def differs(measured: ExportedCase, *, with_schedule: bool = False) -> Iterator[str]:
    """Yield settings of a case that DeepSpeed's configuration can't express; none for a different strategy.

    *with_schedule*: a script next to the configuration sets the schedule of the learning rate.
    """
    case, zero = measured.case, measured.zero
    if not zero:
        return
    for key in optional_sizes(zero):
        if measured.resolved_size(key) is None:
            yield f"{key} is not in the record; DeepSpeed's default applies"
    if lr_schedule.is_scheduled(case.optimizer) and not with_schedule:
        yield (
            f"the case's learning rate follows {lr_schedule.schedule_text(case.optimizer)}, which no "
            "scheduler of DeepSpeed supports. This file has no scheduler, so the rate is constant. Pass "
            "lr_scheduler=lambda optimizer: LambdaLR(optimizer, rate) to deepspeed.initialize, with rate as "
            "--as torch writes it"
        )
    if zero.stage == 0 and case.precision.compute in ("bf16", "fp16"):
        yield (
            "in stage 0 with 16-bit parameters DeepSpeed (observed with 0.19.8) starts with a step without "
            "gradients, which decays the weights and counts as a step in Adam; the measured case reverted "
            "it. With this file the first update is 0.7x as large"
        )
    scale = case.precision.loss_scale or 1.0
    if zero.stage == 0 and scale != 1:
        factor = "engine.optimizer.loss_scale" if scale == "dynamic" else f"{scale:g}"
        yield (
            "in stage 0 with fp16 DeepSpeed (observed with 0.19.8) divides the gradients by the loss scale, "
            "but never multiplies the loss by it, so updates are too small by that factor; the measured "
            f"case multiplied it. Call engine.backward(loss * {factor})"
        )
    uses_cpu_adam = zero.optimizer_kernel == "deepspeed" and case.device == "cpu"
    if uses_cpu_adam and zero.offload_optimizer == "none":
        yield (
            "the case used DeepSpeedCPUAdam, which a configuration selects only with offload; "
            "this file gives FusedAdam, the same algorithm with different rounding"
        )


def notes(measured: ExportedCase) -> Iterator[str]:
    """Yield steps that a script needs in addition to the configuration; none for a different strategy."""
    case, precision, zero = measured.case, measured.case.precision, measured.zero
    if not zero:
        return
    yield f"Call torch.manual_seed({case.seed}) before building the model: DeepSpeed's file has no seed."
    yield (
        f"DeepSpeed keeps {precision.master} master weights and {precision.optimizer_state} optimizer state "
        "by itself, as in the measured case."
    )
    if case.env and measured.nodes > 1:
        lines = ", ".join(f"{name}={value}" for name, value in case.env.items())
        yield f"DeepSpeed's launcher passes no variables to other nodes: write {lines} into .deepspeed_env."
    if zero.stage == 3:
        yield (
            "Build a model that is too large for one device under "
            f'deepspeed.zero.Init(config_dict_or_path="{FILE}").'
        )
    if case.activation_checkpointing != "none":
        yield (
            f"Activation checkpointing ({case.activation_checkpointing}): DeepSpeed leaves it to the model. "
            "Let each layer run in torch's checkpoint, as --as torch writes it."
        )
    if case.compile != "none":
        yield f"torch.compile ({case.compile}): compile each layer in the script, as --as torch writes it."
    if precision.float8 != "none":
        yield (
            f"float8 ({precision.float8}): convert the linear layers in the script, as --as torch writes it."
        )
    if measured.uses_autotp:
        ranks = case.world_size // measured.data_ranks
        yield (
            f"Groups of {ranks} neighbouring ranks process the same samples: rank // {ranks} selects a "
            "rank's micro-batches. tensor_parallel names the layers of the measured model: replace them with "
            f"yours. train_batch_size ({case.batch.global_batch_size}) is left out: DeepSpeed would count "
            "all ranks."
        )
    if "nvme" in (zero.offload_optimizer, zero.offload_parameters):
        yield "nvme_path is a folder on the measured machine; replace it with your own."


def _optimizer(measured: ExportedCase, zero: Zero) -> dict[str, Any]:
    class_, hyperparameters, kernel = optimizer(measured.case.optimizer)
    name = class_.rpartition(".")[2]
    if name == "AdamW" and zero.optimizer_kernel == "deepspeed":
        return {"type": name, "params": hyperparameters}
    # DeepSpeed's Adam is AdamW by default
    own = {"AdamW": {"torch_adam": True}, "Adam": {"torch_adam": True, "adam_w_mode": False}}.get(name, {})
    return {"type": name, "params": {**hyperparameters, **own, **kernel}}


def with_sizes_for(measured: ExportedCase, parameters: float) -> ExportedCase:
    """Set the sizes that the suite of *measured* left open for a model of *parameters* parameters.

    Each is DeepSpeed's default, and at most the size of the model, which no bucket can exceed. Sizes that
    the suite set stay as they are.
    """
    if not (zero := measured.zero):
        return measured
    sizes = {key: min(DEEPSPEED_DEFAULTS[key], int(parameters)) for key in _unset_sizes(zero)}
    about = (
        f"{_listed(sizes)}: not measured, but DeepSpeed's defaults, limited to the size of a model with "
        f"{format_number(parameters)} parameters ({_SIZES_SOURCE}). They count elements, not bytes."
    )
    changes: dict[str, Any] = sizes
    strategy = dataclasses.replace(zero, **changes)
    # disk sizes are of the measured model; without them DeepSpeed's own apply
    effective = {key: value for key, value in measured.effective.items() if key not in NVME_SIZES}
    about_sizes = (about,) if sizes else ()
    return dataclasses.replace(measured, strategy=strategy, effective=effective, size_notes=about_sizes)


def with_measured_sizes(measured: ExportedCase) -> ExportedCase:
    """*measured* with a note on the sizes that fit only the measured model."""
    if not (zero := measured.zero):
        return measured
    sizes = {key: measured.resolved_size(key) for key in _unset_sizes(zero)}
    known = {key: size for key, size in sizes.items() if size is not None}
    count = measured.effective.get("parameters")
    model = f"of {format_number(count)} parameters " if type(count) is int else ""
    about = (
        f"{_listed(known)}: chosen for the model {model}that was measured. For a larger one, "
        "export with --for-parameters N, its number of parameters, such as 7e9."
    )
    return dataclasses.replace(measured, size_notes=(about,) if known else ())


def _unset_sizes(zero: Zero) -> list[str]:
    """Sizes that the suite didn't set, which depend on the model."""
    values = {key: getattr(zero, key) for key in optional_sizes(zero)}
    return [
        key for key, size in values.items() if size is None or (size == 0 and key in _ZERO_IN_OLD_RECORDS)
    ]


def _listed(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{key} = {size:,}" for key, size in sizes.items())
