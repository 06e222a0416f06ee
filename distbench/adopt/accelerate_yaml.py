"""``accelerate``: the file for ``accelerate launch``, and the calls that a script makes."""

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
FILE, SCRIPT = "accelerate.yaml", "adopted_accelerate.py"

_NOTES = (
    f"In train.py, with {SCRIPT} next to it or pasted in: accelerator = setup(); build the model; "
    "model, optimizer, loader = prepare(accelerator, model, layers, loader), where layers are the modules "
    "to checkpoint individually; then train(accelerator, model, optimizer, loader, loss_of) yields one loss "
    f"per update. Accelerate's file has no optimizer, batch size or clipping: {SCRIPT} sets them.",
    *base.COMMON_NOTES,
)


def problem(measured: Measured) -> str | None:
    """Why Accelerate can't express this case, or None."""
    case, strategy = measured.case, measured.strategy
    if isinstance(strategy, DataParallel):
        return "Accelerate has no nn.DataParallel"
    if isinstance(strategy, Zero) and case.device == "cpu":
        return (
            "Accelerate (observed with 1.15) treats every DeepSpeed CPU rank as the only process, so all of "
            "them train on the same data"
        )
    if isinstance(strategy, FullyShardedDataParallel):
        if case.device == "cpu":
            # its state.py turns only MULTI_GPU and the like into FSDP
            return "Accelerate (observed with 1.15) shards only on accelerators; on CPUs it silently runs DDP"
        if strategy.version == 1 and strategy.sharding == "hybrid":
            return (
                "Accelerate passes no mesh to FSDP1, so it can't set the number of replicas of a hybrid shard"
            )
    if case.precision.compute == "fp16" and not isinstance(strategy, Zero):
        return (
            "Accelerate scales fp16 losses dynamically, the case by a constant "
            f"({case.precision.loss_scale!r})"
        )
    return None


def write(measured: Measured) -> Adopted:
    """The case as Accelerate's file and the calls of a script."""
    case = measured.case
    launch = _launch(measured)
    notes, differs, files = list(_NOTES), _differs(measured), {}
    if case.device == "cpu" and not isinstance(measured.strategy, Zero):
        notes.append("On CPUs accelerate launch needs mpirun; torchrun starts the same ranks without it.")
    if isinstance(measured.strategy, Zero):
        notes += deepspeed_json.notes(measured)
        files = {deepspeed_json.FILE: base.as_json(deepspeed_json.config(measured))}
    if isinstance(measured.strategy, FullyShardedDataParallel) and not base.layer_classes(measured):
        notes.append(
            "The class of the layers is not in the record: set fsdp_transformer_layer_cls_to_wrap to yours, "
            "unless the model is from transformers, which names them itself."
        )
    yaml = base.commented(base.header(case, launch, notes, differs)) + "\n" + _yaml(_config(measured))
    top = f"# Use with {FILE}, which has the settings and the launch command.\n\n"
    return Adopted(
        {FILE: yaml, SCRIPT: top + _script(measured), **files}, launch, tuple(notes), tuple(differs)
    )


def _launch(measured: Measured) -> str:
    case = measured.case
    words = ("accelerate", "launch", "--config_file", FILE, "train.py")
    if isinstance(measured.strategy, Zero):
        return base.command(case, *words, **deepspeed_json.variables(case))
    return base.torchrun(case) if case.device == "cpu" else base.command(case, *words)


def _differs(measured: Measured) -> list[str]:
    case, strategy = measured.case, measured.strategy
    if isinstance(strategy, Zero):
        return deepspeed_json.differs(measured)
    if isinstance(strategy, FullyShardedDataParallel):
        units = ["Accelerate shards the embedding and the head of a transformers model as separate units"]
        root = "Accelerate keeps the root's parameters gathered after forward; the case resharded them"
        return units + ([root] if strategy.reshard_root else []) if strategy.version == 2 else []
    if base.mixed(case):
        return [
            f"Accelerate's {case.precision.compute} is torch.autocast here, which keeps some operations in "
            "fp32 and caches cast weights; the case cast every parameter, as --as torch does"
        ]
    return []


def _config(measured: Measured) -> dict[str, Any]:
    case, strategy = measured.case, measured.strategy
    config: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": _type(measured),
        "num_machines": 1,
        "num_processes": case.world_size,
        "machine_rank": 0,
        "main_training_function": "main",
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": case.device == "cpu",
    }
    if isinstance(strategy, Zero):
        # the precision is in DeepSpeed's own file; giving it twice is an error
        section = {"deepspeed_config_file": deepspeed_json.FILE, "zero3_init_flag": strategy.stage == 3}
        return {**config, "deepspeed_config": section}
    config["mixed_precision"] = _precision(measured)
    if isinstance(strategy, FullyShardedDataParallel):
        config["fsdp_config"] = _fsdp_config(measured, strategy)
        if strategy.sharding == "hybrid":
            shards = case.world_size // strategy.replicas
            config["parallelism_config"] = {
                "parallelism_config_dp_replicate_size": strategy.replicas,
                "parallelism_config_dp_shard_size": shards,
            }
    return config


def _type(measured: Measured) -> str:
    if isinstance(measured.strategy, Zero):
        return "DEEPSPEED"
    if isinstance(measured.strategy, FullyShardedDataParallel):
        return "FSDP"
    if measured.case.world_size == 1:
        return "NO"
    return "MULTI_CPU" if measured.case.device == "cpu" else "MULTI_GPU"


def _precision(measured: Measured) -> str:
    """Accelerate's word for the precision; FSDP gets its dtypes from a policy instead."""
    case = measured.case
    if isinstance(measured.strategy, FullyShardedDataParallel) or not base.mixed(case):
        return "no"
    return case.precision.compute


def _fsdp_config(measured: Measured, strategy: FullyShardedDataParallel) -> dict[str, Any]:
    classes = base.layer_classes(measured)
    shared: dict[str, Any] = {
        "fsdp_version": strategy.version,
        "fsdp_offload_params": strategy.cpu_offload,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        **({"fsdp_transformer_layer_cls_to_wrap": ",".join(classes)} if classes else {}),
        "fsdp_activation_checkpointing": measured.case.activation_checkpointing == "full",
        "fsdp_cpu_ram_efficient_loading": False,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    }
    if strategy.version == 2:
        return {**shared, "fsdp_reshard_after_forward": strategy.sharding != "grad_op"}
    return {
        **shared,
        "fsdp_sharding_strategy": _fsdp.sharding_strategy(strategy),
        "fsdp_use_orig_params": True,
        "fsdp_sync_module_states": False,
        # torch's default, which is not Accelerate's
        "fsdp_backward_prefetch": "BACKWARD_PRE",
        "fsdp_forward_prefetch": False,
    }


def _yaml(config: dict[str, Any]) -> str:
    lines_ = []
    for key, value in config.items():
        if isinstance(value, dict):
            lines_ += [f"{key}:", *(f"  {name}: {base.literal(inner)}" for name, inner in value.items())]
        else:
            lines_.append(f"{key}: {base.literal(value)}")
    return "\n".join(lines_) + "\n"


def _script(measured: Measured) -> str:
    case, strategy = measured.case, measured.strategy
    wraps = case.activation_checkpointing == "full" and not isinstance(strategy, FullyShardedDataParallel)
    parts = (
        lines(
            "import torch",
            "from accelerate import Accelerator",
            f"from accelerate.utils import {', '.join([*_names(measured), 'GradientAccumulationPlugin'])}",
            _policy_import(strategy),
            _python.checkpoint_imports(case, wraps) if wraps else "",
        ),
        _setup(measured),
        _python.WRAP_LAYERS if wraps else "",
        _prepare(measured, wraps),
        _train(measured),
    )
    return "\n\n".join(part.strip("\n") + "\n" for part in parts if part)


def _names(measured: Measured) -> list[str]:
    match measured.strategy:
        case DistributedDataParallel():
            hook = measured.case.precision.reduce != measured.case.precision.master
            return ["DDPCommunicationHookType", "DistributedDataParallelKwargs"][not hook :]
        case FullyShardedDataParallel():
            return ["FullyShardedDataParallelPlugin"]
        case Zero():
            return ["DummyOptim"]
    return []


def _policy_import(strategy: object) -> str:
    if not isinstance(strategy, FullyShardedDataParallel):
        return ""
    return f"from torch.distributed.fsdp import {_policy_class(strategy)}"


def _policy_class(strategy: FullyShardedDataParallel) -> str:
    return "MixedPrecisionPolicy" if strategy.version == 2 else "MixedPrecision"


def _setup(measured: Measured) -> str:
    case, strategy = measured.case, measured.strategy
    syncs_each = isinstance(strategy, FullyShardedDataParallel) and strategy.reduce_each_micro_batch
    plugin = block(f"""
        gradient_accumulation_plugin=GradientAccumulationPlugin(
            num_steps={case.batch.gradient_accumulation_steps},
            adjust_scheduler=False,
            sync_with_dataloader=False,
            sync_each_batch={syncs_each},
        ),
    """)
    body = lines(
        f"torch.set_num_threads({case.threads})",
        f"torch.manual_seed({case.seed})  # before the model is built: all ranks start with equal weights",
        "return Accelerator(",
        *(f"    {line}" for line in lines(_arguments(measured), plugin).splitlines()),
        ")",
    )
    return function("setup()", "Return the Accelerator; call it before the model is built.", body)


def _arguments(measured: Measured) -> str:
    case, strategy = measured.case, measured.strategy
    if isinstance(strategy, Zero):
        return ""
    own = ""
    if isinstance(strategy, FullyShardedDataParallel):
        policy = f"{_policy_class(strategy)}({_fsdp.policy(case)})"
        own = f"fsdp_plugin=FullyShardedDataParallelPlugin(\n    mixed_precision_policy={policy}\n),"
    if isinstance(strategy, DistributedDataParallel):
        hook = f"    comm_hook=DDPCommunicationHookType.{case.precision.reduce.upper()},"
        own = lines(
            "kwargs_handlers=[DistributedDataParallelKwargs(",
            hook if case.precision.reduce != case.precision.master else "",
            f"    bucket_cap_mb={strategy.bucket_cap_mb!r},",
            f"    gradient_as_bucket_view={strategy.gradient_as_bucket_view},",
            f"    static_graph={strategy.static_graph},",
            ")],",
        )
    return lines(f"cpu={case.device == 'cpu'},", f'mixed_precision="{_precision(measured)}",', own)


def _prepare(measured: Measured, wraps: bool) -> str:
    case = measured.case
    master = f"model = model.to({_python.dtype(case.precision.master)})  # the master weights"
    if isinstance(measured.strategy, Zero):
        master = ""
        make = f"optimizer = DummyOptim(model.parameters())  # configured in {deepspeed_json.FILE}"
    else:
        make = _python.make_optimizer(case)
    body = lines(
        master,
        _python.CHECKPOINT if wraps else "",
        make,
        "return accelerator.prepare(model, optimizer, loader)",
    )
    doc = "Return wrapped model, optimizer and loader; *loader* yields micro-batches of all ranks' data."
    return function("prepare(accelerator, model, layers, loader)", doc, body)


def _train(measured: Measured) -> str:
    limit = measured.case.optimizer.clip_grad_norm
    clips = limit is not None and not isinstance(measured.strategy, Zero)
    clip = f"if accelerator.sync_gradients:\n    accelerator.clip_grad_norm_(model.parameters(), {limit!r})"
    within = lines(
        "loss = loss_of(model, batch)",
        "accelerator.backward(loss)",
        clip if clips else "",
        "optimizer.step()",
        "optimizer.zero_grad()",
    )
    body = lines(
        "losses = []",
        "for batch in loader:",
        "    with accelerator.accumulate(model):",
        *(f"        {line}" for line in within.splitlines()),
        "    losses.append(loss.detach())",
        "    if accelerator.sync_gradients:",
        "        yield torch.stack(losses).mean()",
        "        losses = []",
    )
    number = measured.case.batch.gradient_accumulation_steps
    doc = f"Yield this rank's mean loss per update; an update uses {number} batches of *loader*."
    return function("train(accelerator, model, optimizer, loader, loss_of)", doc, body)
