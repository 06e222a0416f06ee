"""``transformers``: arguments for HfArgumentParser, and a Trainer with the weight decay of the case."""

from __future__ import annotations

from typing import Any

from distbench.adopt import _fsdp, _python, base, deepspeed_json
from distbench.adopt._python import block, function, lines
from distbench.adopt.base import Adopted, Measured
from distbench.strategies.ddp import DistributedDataParallel
from distbench.strategies.dp import DataParallel
from distbench.strategies.fsdp import FullyShardedDataParallel
from distbench.strategies.single import Single
from distbench.strategies.zero import Zero

STRATEGIES = (Single, DistributedDataParallel, FullyShardedDataParallel, Zero)
FILE, SCRIPT = "trainer_args.json", "adopted_trainer.py"

_NOTES = (
    f'In train.py: (args,) = HfArgumentParser(TrainingArguments).parse_json_file("{FILE}"). max_steps, '
    "output_dir, logging and saving are up to you; they don't affect updates.",
    "These arguments override defaults of Trainer: a linear schedule, clipping at 1.0, Adam's betas (0.9, "
    "0.999), and DDP's find_unused_parameters for transformers models.",
    "A transformers model divides its summed loss by the number of tokens in the whole batch: equal to the "
    "case if every sample has the same number of tokens; otherwise longer samples weigh more.",
    "Trainer draws samples at random by data_seed; the case used them in the order of its data.",
    *base.COMMON_NOTES,
)


def problem(measured: Measured) -> str | None:
    """Why Trainer can't express this case, or None."""
    case, strategy = measured.case, measured.strategy
    if isinstance(strategy, DataParallel):
        return "Trainer uses nn.DataParallel depending on the number of visible GPUs; no argument sets it"
    if isinstance(strategy, FullyShardedDataParallel):
        if case.device == "cpu":
            return "Trainer shards through Accelerate, only on accelerators; on CPUs it silently runs DDP"
        if strategy.sharding == "hybrid":
            return "no argument of Trainer sets the number of replicas of a hybrid shard"
    if case.precision.compute == "fp16" and not isinstance(strategy, Zero):
        return (
            f"Trainer scales fp16 losses dynamically, the case by a constant ({case.precision.loss_scale!r})"
        )
    return None


def write(measured: Measured) -> Adopted:
    """The case as TrainingArguments, with DeepSpeed's configuration or a Trainer subclass."""
    case, launch = measured.case, base.torchrun(measured.case)
    notes, differs = [*_NOTES, *_own_notes(measured)], _differs(measured)
    files = {FILE: base.as_json(_arguments(measured))}
    if isinstance(measured.strategy, Zero):
        launch = base.torchrun(case, **deepspeed_json.variables(case))
        notes += deepspeed_json.notes(measured)
        files[deepspeed_json.FILE] = base.as_json(deepspeed_json.config(measured))
    else:
        notes.append(f"Use AdoptedTrainer from {SCRIPT} in place of Trainer.")
        files[SCRIPT] = base.commented(base.header(case, launch, notes, differs)) + "\n" + _trainer(measured)
    return Adopted(files, launch, tuple(notes), tuple(differs))


def _own_notes(measured: Measured) -> list[str]:
    case = measured.case
    notes = []
    if case.precision.master != "fp32":
        notes.append(f"Load the model in {_python.dtype(case.precision.master)}: Trainer keeps its dtype.")
    if isinstance(measured.strategy, FullyShardedDataParallel) and not base.layer_classes(measured):
        notes.append(
            "The class of the layers is not in the record: add transformer_layer_cls_to_wrap to fsdp_config, "
            "unless the model is from transformers, which names them itself."
        )
    return notes


def _differs(measured: Measured) -> list[str]:
    strategy = measured.strategy
    if isinstance(strategy, Zero):
        return deepspeed_json.differs(measured)
    differences = _precision_differs(measured)
    if isinstance(strategy, FullyShardedDataParallel) and strategy.reshard_root:
        differences.append(
            "Trainer keeps the root's parameters gathered after forward; the case resharded them"
        )
    if isinstance(strategy, DistributedDataParallel) and strategy.gradient_as_bucket_view:
        differences.append("Trainer has no gradient_as_bucket_view: with DDP gradients use twice the memory")
    if isinstance(strategy, DistributedDataParallel) and not strategy.bucket_cap_mb.is_integer():
        differences.append(
            f"Trainer's bucket size is a whole number of MiB, the case's is {strategy.bucket_cap_mb:g}; the "
            "default of 25 applies"
        )
    return differences


def _precision_differs(measured: Measured) -> list[str]:
    precision = measured.case.precision
    sharded = isinstance(measured.strategy, FullyShardedDataParallel)
    differences = []
    if base.mixed(measured.case):
        differences.append(
            f"Trainer's {precision.compute} is torch.autocast, which keeps some operations in fp32; the case "
            "computed everything in it, as --as torch does"
        )
    reduced = precision.compute if sharded else precision.master
    if precision.reduce != reduced and not isinstance(measured.strategy, Zero):
        differences.append(f"Trainer reduces gradients in {reduced}, the case in {precision.reduce}")
    return differences


def _arguments(measured: Measured) -> dict[str, Any]:
    case, strategy = measured.case, measured.strategy
    spec, batch = case.optimizer, case.batch
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
        "gradient_checkpointing": _checkpoints(measured),
        **({"gradient_checkpointing_kwargs": {"use_reentrant": False}} if _checkpoints(measured) else {}),
        **({"ddp_backend": "gloo"} if case.device == "cpu" and case.world_size > 1 else {}),
    }
    match strategy:
        case Zero():
            arguments["deepspeed"] = deepspeed_json.FILE
        case DistributedDataParallel():
            if strategy.bucket_cap_mb.is_integer():
                arguments["ddp_bucket_cap_mb"] = int(strategy.bucket_cap_mb)
            arguments["ddp_static_graph"] = strategy.static_graph
            arguments["ddp_find_unused_parameters"] = False
            arguments["ddp_broadcast_buffers"] = True
        case FullyShardedDataParallel():
            arguments |= {"fsdp": True, "fsdp_config": _fsdp_config(measured, strategy)}
            kwargs = {"sync_each_batch": strategy.reduce_each_micro_batch}
            arguments["accelerator_config"] = {"gradient_accumulation_kwargs": kwargs}
    return arguments


def _optim(measured: Measured) -> str:
    spec = measured.case.optimizer
    if spec.name == "sgd":
        return "sgd"
    return "adamw_torch_fused" if spec.kernel == "fused" else "adamw_torch"


def _checkpoints(measured: Measured) -> bool:
    # FSDP has its own, which avoids gathering the parameters again
    sharded = isinstance(measured.strategy, FullyShardedDataParallel)
    return measured.case.activation_checkpointing == "full" and not sharded


def _fsdp_config(measured: Measured, strategy: FullyShardedDataParallel) -> dict[str, Any]:
    classes = base.layer_classes(measured)
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
        "Set what no argument of Trainer sets; call it before the model is built.",
        lines(
            f"torch.set_num_threads({measured.case.threads})",
            f"torch.manual_seed({measured.case.seed})",
        ),
    )
    body = block(f"""
        class AdoptedTrainer(Trainer):
            \"\"\"Trainer with the optimizer of the measured case, every hyperparameter explicit.\"\"\"

            def get_decay_parameter_names(self, model):
                # Trainer excludes biases and norms
                return [name for name, _ in model.named_parameters()]

            @staticmethod
            def get_optimizer_cls_and_kwargs(args, model=None):
                return {class_}, dict(
                    {arguments}
                )
    """)
    return f"import torch\nfrom transformers import Trainer\n\n\n{threads}\n\n{body}\n"
