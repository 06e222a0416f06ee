"""``transformers``: arguments for HfArgumentParser, and a Trainer with the weight decay of the case."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from distbench.adopt import deepspeed_config
from distbench.adopt.accelerate_config import fsdp_settings
from distbench.adopt.exported_case import (
    FSDP1_STRATEGIES,
    ExportedCase,
    ExportedFiles,
    loss_scale_problems,
    optimizer_description,
    second_optimizer,
)
from distbench.adopt.instructions import (
    COMMON_NOTES,
    header,
    split_note,
    torchrun,
    unit_differences,
    unnamed_layers,
)
from distbench.adopt.script_templates import render, script_context, torch_dtype
from distbench.core.case import LoaderConfig
from distbench.strategies.dp import DataParallel

FILE, SCRIPT = "trainer_args.json", "adopted_trainer.py"

_NOTES = (
    f'In train.py: (args,) = HfArgumentParser(TrainingArguments).parse_json_file("{FILE}"). max_steps, '
    "output_dir, logging and saving are up to you; they don't affect updates.",
    "These arguments override defaults of Trainer: a linear schedule, clipping at 1.0, Adam's betas (0.9, "
    "0.999), and DDP's find_unused_parameters for transformers models.",
    "A transformers model divides its summed loss by the number of tokens in the whole batch: equal to the "
    "case if every sample has the same number of tokens; otherwise longer samples weigh more.",
    "Trainer draws samples at random by data_seed; the case used them in the order of its data.",
    *COMMON_NOTES,
)


def problems(measured: ExportedCase) -> Iterator[str]:
    """Yield reasons why Trainer can't express this case."""
    case, spec, fsdp = measured.case, measured.case.optimizer, measured.fsdp
    if isinstance(measured.strategy, DataParallel):
        yield "Trainer uses nn.DataParallel depending on the number of visible GPUs; no argument sets it"
    if fsdp and case.device == "cpu":
        yield "Trainer shards through Accelerate, only on accelerators; on CPUs it silently runs DDP"
    if fsdp and fsdp.sharding == "hybrid":
        yield "no argument of Trainer sets the number of replicas of a hybrid shard"
    if case.activation_checkpointing == "selective":
        yield "Trainer recomputes whole layers; the case kept matrix products and attention"
    if case.compile != "none":
        yield "Trainer compiles the model as a whole; the case compiled it layer by layer"
    if measured.zero and spec.name == "adafactor":
        yield "Trainer requires its own single eps in DeepSpeed's file, but Adafactor has two"
    if second_optimizer(spec):
        yield f"Trainer has one optimizer; optimizer.name = {spec.name} is {optimizer_description(spec)}"
    if case.precision.float8 != "none":
        yield f"no argument of Trainer converts layers to torchao's float8 ({case.precision.float8})"
    yield from loss_scale_problems(measured, "Trainer")


def write(measured: ExportedCase) -> ExportedFiles:
    """The case as TrainingArguments, with DeepSpeed's configuration or a Trainer subclass."""
    launch, differs = torchrun(measured), tuple(_differs(measured))
    notes = [*measured.size_notes, *_NOTES, *_own_notes(measured), *deepspeed_config.notes(measured)]
    files = {FILE: json.dumps(_arguments(measured), indent=2) + "\n", **deepspeed_config.files(measured)}
    if not measured.zero:
        notes.append(f"Use AdoptedTrainer from {SCRIPT} in place of Trainer.")
        script = render("trainer.py.j2", script_context(measured))
        files[SCRIPT] = header(measured.case, launch, notes, differs) + "\n" + script
    return ExportedFiles(files, launch, tuple(notes), differs)


def _own_notes(measured: ExportedCase) -> Iterator[str]:
    master = measured.case.precision.master
    if master != "fp32":
        yield f"Load the model in {torch_dtype(master)}: Trainer keeps its dtype."
    yield from split_note(measured)
    yield from unnamed_layers(measured, "add transformer_layer_cls_to_wrap to fsdp_config")


def _differs(measured: ExportedCase) -> Iterator[str]:
    precision, ddp, fsdp = measured.case.precision, measured.ddp, measured.fsdp
    if measured.zero:
        yield from deepspeed_config.differs(measured)
        return
    if measured.is_mixed:
        yield (
            f"Trainer's {precision.compute} is torch.autocast, which keeps some operations in fp32; the case "
            "computed everything in it, as --as torch does"
        )
    reduced = precision.compute if fsdp else precision.master
    if precision.reduce != reduced:
        yield f"Trainer reduces gradients in {reduced}, the case in {precision.reduce}"
    if fsdp and fsdp.reshard_root:
        yield "Trainer keeps the root's parameters unsharded after forward; the case resharded them"
    yield from unit_differences(measured, "Trainer")
    if ddp and ddp.gradient_as_bucket_view:
        yield "Trainer has no gradient_as_bucket_view: with DDP gradients use twice the memory"
    if ddp and not ddp.bucket_cap_mb.is_integer():
        yield (
            f"Trainer's bucket size is a whole number of MiB, the case's is {ddp.bucket_cap_mb:g}; the "
            "default of 25 applies"
        )


def _arguments(measured: ExportedCase) -> dict[str, Any]:
    case, spec, batch = measured.case, measured.case.optimizer, measured.case.batch
    # FSDP has its own, which avoids gathering the parameters again
    recomputes = case.activation_checkpointing == "full" and not measured.fsdp
    arguments: dict[str, Any] = {
        "output_dir": "out",
        "per_device_train_batch_size": batch.micro_batch_size,
        "gradient_accumulation_steps": batch.gradient_accumulation_steps,
        "dataloader_drop_last": True,
        "optim": _optim(measured),
        "learning_rate": spec.lr,
        "lr_scheduler_type": "constant",
        "warmup_steps": 0,
        "weight_decay": spec.weight_decay,
        "adam_beta1": spec.betas[0],
        "adam_beta2": spec.betas[1],
        "adam_epsilon": spec.eps,
        # 0 disables clipping
        "max_grad_norm": spec.clip_grad_norm or 0.0,
        "bf16": case.precision.compute == "bf16",
        "fp16": case.precision.compute == "fp16",
        "seed": case.seed,
        "data_seed": case.seed,
        "full_determinism": False,
        "use_cpu": case.device == "cpu",
        "gradient_checkpointing": recomputes,
        **({"gradient_checkpointing_kwargs": {"use_reentrant": False}} if recomputes else {}),
        **({"ddp_backend": "gloo"} if case.device == "cpu" and case.world_size > 1 else {}),
    }
    if case.loader.workers is not None:
        arguments |= _loader_arguments(case.loader)
    if measured.zero:
        arguments["deepspeed"] = deepspeed_config.FILE
    if ddp := measured.ddp:
        if (asked := ddp.explicit_bucket_cap_mb) and asked.is_integer():
            arguments["ddp_bucket_cap_mb"] = int(asked)
        arguments["ddp_static_graph"] = ddp.static_graph
        arguments["ddp_find_unused_parameters"] = ddp.find_unused_parameters
        arguments["ddp_broadcast_buffers"] = True
    if fsdp := measured.fsdp:
        config = {**fsdp_settings(measured, fsdp), "cpu_offload": fsdp.cpu_offload}
        if fsdp.version == 1:
            config["reshard_after_forward"] = FSDP1_STRATEGIES[fsdp.sharding].lower()
        arguments |= {"fsdp": True, "fsdp_config": config}
        kwargs = {"sync_each_batch": fsdp.reduce_each_micro_batch}
        arguments["accelerator_config"] = {"gradient_accumulation_kwargs": kwargs}
    return arguments


def _loader_arguments(loader: LoaderConfig) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "dataloader_num_workers": loader.workers,
        "dataloader_pin_memory": loader.pin_memory,
        "dataloader_persistent_workers": loader.persistent_workers,
    }
    # transformers refuses it without workers
    return arguments | ({"dataloader_prefetch_factor": loader.prefetch_factor} if loader.workers else {})


def _optim(measured: ExportedCase) -> str:
    spec = measured.case.optimizer
    if spec.name == "sgd":
        return "sgd"
    return "adamw_torch_fused" if spec.kernel == "fused" else "adamw_torch"
