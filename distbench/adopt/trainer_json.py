"""``transformers``: arguments for HfArgumentParser, and a Trainer that decays what the case decayed."""

from __future__ import annotations

from typing import Any

from distbench.adopt import _fsdp, _python, _zero
from distbench.adopt._python import block, function, lines
from distbench.adopt.base import (
    COMMON_NOTES,
    Adopted,
    Measured,
    as_json,
    commented,
    header,
    layer_classes,
    mixed,
    torchrun,
)
from distbench.strategies.ddp import DistributedDataParallel
from distbench.strategies.dp import DataParallel
from distbench.strategies.fsdp import FullyShardedDataParallel
from distbench.strategies.zero import Zero

FILE, SCRIPT = "trainer_args.json", "adopted_trainer.py"

_NOTES = (
    f'In train.py: (args,) = HfArgumentParser(TrainingArguments).parse_json_file("{FILE}"). max_steps, '
    "output_dir, logging and saving are yours; they change no update.",
    "Trainer's own defaults that these arguments take back: a linear schedule, clipping at 1.0, Adam's betas "
    "(0.9, 0.999); and of DDP find_unused_parameters for models of transformers.",
    "A model of transformers gets the number of tokens of the whole batch and divides its summed loss by it: "
    "the same as the case where every sample has as many tokens, else rows with more tokens weigh more.",
    "Trainer draws its samples at random from data_seed; the case took them in the order of its own data.",
    *COMMON_NOTES,
)


def problem(measured: Measured) -> str | None:
    """Return why Trainer can't say this case, or None."""
    case, strategy = measured.case, measured.strategy
    if isinstance(strategy, DataParallel):
        return "Trainer falls into nn.DataParallel by the number of GPUs it sees; no argument says so"
    if isinstance(strategy, FullyShardedDataParallel):
        if case.device == "cpu":
            return "Trainer shards through Accelerate, on accelerators only; on CPUs it would quietly run DDP"
        if strategy.sharding == "hybrid":
            return "no argument of Trainer says how many replicas a hybrid shard has"
    if case.precision.compute == "fp16" and not isinstance(strategy, Zero):
        return (
            "Trainer scales the losses of fp16 by a scale that it moves, the case by a constant one: "
            f"{case.precision.loss_scale!r}"
        )
    return None


def write(measured: Measured) -> Adopted:
    """Return the case as TrainingArguments, with DeepSpeed's configuration or a Trainer beside them."""
    case, launch = measured.case, torchrun(measured.case)
    notes, differs = [*_NOTES, *_own_notes(measured)], _differs(measured)
    files = {FILE: as_json(_arguments(measured))}
    if isinstance(measured.strategy, Zero):
        launch = torchrun(case, **_zero.variables(case))
        notes += _zero.notes(measured)
        files[_zero.FILE] = as_json(_zero.config(measured))
    else:
        notes.append(f"AdoptedTrainer of {SCRIPT} takes the place of Trainer.")
        files[SCRIPT] = commented(header(case, launch, notes, differs)) + "\n" + _trainer(measured)
    return Adopted(files, launch, tuple(notes), tuple(differs))


def _own_notes(measured: Measured) -> list[str]:
    case = measured.case
    found = []
    if case.precision.master != "fp32":
        found.append(f"Load the model in {_python.dtype(case.precision.master)}: Trainer keeps its dtype.")
    if isinstance(measured.strategy, FullyShardedDataParallel) and not layer_classes(measured):
        found.append(
            "The record doesn't tell the class of the layers: unless the model is of transformers, which "
            "names them itself, add transformer_layer_cls_to_wrap to fsdp_config."
        )
    return found


def _differs(measured: Measured) -> list[str]:
    strategy = measured.strategy
    if isinstance(strategy, Zero):
        return _zero.differs(measured)
    found = _precision_differs(measured)
    if isinstance(strategy, FullyShardedDataParallel) and strategy.reshard_root:
        found.append(
            "Trainer keeps the root's parameters gathered after forward; the case sharded them again"
        )
    if isinstance(strategy, DistributedDataParallel) and strategy.gradient_as_bucket_view:
        found.append("Trainer has no gradient_as_bucket_view: gradients take their memory twice under DDP")
    if isinstance(strategy, DistributedDataParallel) and not strategy.bucket_cap_mb.is_integer():
        found.append(
            f"Trainer's buckets are of whole MiB, the case's of {strategy.bucket_cap_mb:g}: 25 stand"
        )
    return found


def _precision_differs(measured: Measured) -> list[str]:
    precision = measured.case.precision
    sharded = isinstance(measured.strategy, FullyShardedDataParallel)
    found = []
    if mixed(measured.case):
        found.append(
            f"Trainer's {precision.compute} is torch.autocast, which keeps some operations in fp32; the case "
            "computed everything in it: --as torch does the same"
        )
    reduced = precision.compute if sharded else precision.master
    if precision.reduce != reduced and not isinstance(measured.strategy, Zero):
        found.append(f"Trainer reduces gradients in {reduced}, the case in {precision.reduce}")
    return found


def _arguments(measured: Measured) -> dict[str, Any]:
    case, strategy = measured.case, measured.strategy
    spec, batch = case.optimizer, case.batch
    found: dict[str, Any] = {
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
        # 0 is never
        "max_grad_norm": spec.clip_grad_norm or 0.0,
        "bf16": case.precision.compute == "bf16",
        "fp16": case.precision.compute == "fp16",
        "seed": case.seed,
        "data_seed": case.seed,
        "full_determinism": False,
        "use_cpu": case.device == "cpu",
        "gradient_checkpointing": _checkpoints(measured),
        **({"gradient_checkpointing_kwargs": {"use_reentrant": False}} if _checkpoints(measured) else {}),
        **({"ddp_backend": "gloo"} if case.device == "cpu" and case.world_size > 1 else {}),
    }
    match strategy:
        case Zero():
            found["deepspeed"] = _zero.FILE
        case DistributedDataParallel():
            if strategy.bucket_cap_mb.is_integer():
                found["ddp_bucket_cap_mb"] = int(strategy.bucket_cap_mb)
            found["ddp_static_graph"] = strategy.static_graph
            found["ddp_find_unused_parameters"] = False
            found["ddp_broadcast_buffers"] = True
        case FullyShardedDataParallel():
            found |= {"fsdp": True, "fsdp_config": _fsdp_config(measured, strategy)}
            kwargs = {"sync_each_batch": strategy.reduce_each_micro_batch}
            found["accelerator_config"] = {"gradient_accumulation_kwargs": kwargs}
    return found


def _optim(measured: Measured) -> str:
    spec = measured.case.optimizer
    if spec.name == "sgd":
        return "sgd"
    return "adamw_torch_fused" if spec.kernel == "fused" else "adamw_torch"


def _checkpoints(measured: Measured) -> bool:
    # FSDP has its own, which does not gather the parameters once more for it
    sharded = isinstance(measured.strategy, FullyShardedDataParallel)
    return measured.case.activation_checkpointing == "full" and not sharded


def _fsdp_config(measured: Measured, strategy: FullyShardedDataParallel) -> dict[str, Any]:
    classes = layer_classes(measured)
    shared: dict[str, Any] = {
        "version": strategy.version,
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        **({"transformer_layer_cls_to_wrap": classes} if classes else {}),
        "cpu_offload": strategy.cpu_offload,
        "activation_checkpointing": measured.case.activation_checkpointing == "full",
        "cpu_ram_efficient_loading": False,
        "state_dict_type": "SHARDED_STATE_DICT",
    }
    if strategy.version == 2:
        return {**shared, "reshard_after_forward": strategy.sharding != "grad_op"}
    own = {"use_orig_params": True, "backward_prefetch": "BACKWARD_PRE", "sync_module_states": False}
    return {**shared, "reshard_after_forward": _fsdp.sharding_strategy(strategy).lower(), **own}


def _trainer(measured: Measured) -> str:
    class_, arguments = _python.optimizer(measured.case.optimizer)
    threads = function(
        "setup()",
        "Do what no argument of Trainer does; call it before the model is built.",
        lines(
            f"torch.set_num_threads({measured.case.threads})",
            f"torch.manual_seed({measured.case.seed})",
        ),
    )
    body = block(f"""
        class AdoptedTrainer(Trainer):
            \"\"\"Trainer with the optimizer of the measured case, every hyper-parameter explicit.\"\"\"

            def get_decay_parameter_names(self, model):
                # Trainer leaves out biases and norms
                return [name for name, _ in model.named_parameters()]

            @staticmethod
            def get_optimizer_cls_and_kwargs(args, model=None):
                return {class_}, dict(
                    {arguments}
                )
    """)
    return f"import torch\nfrom transformers import Trainer\n\n\n{threads}\n\n{body}\n"
