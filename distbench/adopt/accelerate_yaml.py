"""``accelerate``: the file for ``accelerate launch``, and the calls that a script makes."""

from __future__ import annotations

import json
from textwrap import indent
from typing import Any

from distbench.adopt import _fsdp, _optimizer, _python, base, deepspeed_json
from distbench.adopt._python import block, function, lines
from distbench.adopt.base import ExportedCase, ExportedFiles
from distbench.strategies.dp import DataParallel
from distbench.strategies.fsdp import FullyShardedDataParallel

FILE, SCRIPT = "accelerate.yaml", "adopted_accelerate.py"

_NOTES = (
    f"In train.py, with {SCRIPT} next to it or pasted in: accelerator = setup(); build the model; "
    "model, optimizer, loader = prepare(accelerator, model, layers, loader), where layers are the modules "
    "to checkpoint individually; then train(accelerator, model, optimizer, loader, loss_of) yields one loss "
    f"per update. Accelerate's file has no optimizer, batch size or clipping: {SCRIPT} sets them.",
    *base.COMMON_NOTES,
)
_ON_CPUS = "On CPUs accelerate launch needs mpirun; torchrun starts the same ranks without it."


def problems(measured: ExportedCase) -> list[str]:
    """Reasons why Accelerate can't express this case."""
    fsdp, on_cpu = measured.fsdp, measured.case.device == "cpu"
    sentences = {
        "Accelerate has no nn.DataParallel": isinstance(measured.strategy, DataParallel),
        "Accelerate (observed with 1.15) treats every DeepSpeed CPU rank as the only process, so all of "
        "them train on the same data": measured.zero and on_cpu,
        # its state.py converts only MULTI_GPU and the like to FSDP
        "Accelerate (observed with 1.15) shards only on accelerators; on CPUs it silently runs DDP": (
            fsdp and on_cpu
        ),
        "Accelerate passes no mesh to FSDP1, so it can't set the number of replicas of a hybrid shard": (
            fsdp and fsdp.version == 1 and fsdp.sharding == "hybrid"
        ),
        "Accelerate's FSDP recomputes whole layers; the case kept matrix products and attention": (
            fsdp and measured.case.activation_checkpointing == "selective"
        ),
        **base.fixed_loss_scale(measured, "Accelerate"),
    }
    return base.applicable(sentences)


def write(measured: ExportedCase) -> ExportedFiles:
    """The case as Accelerate's file and the calls of a script."""
    case, differs = measured.case, _differs(measured)
    launch = base.command(measured, "accelerate", "launch", "--config_file", FILE, "train.py")
    if case.device == "cpu":
        launch = base.torchrun(measured)
    notes = (
        *measured.size_notes,
        *_NOTES,
        *base.matrix_optimizer_note(measured),
        *base.applicable({_ON_CPUS: case.device == "cpu"}),
        *deepspeed_json.notes(measured),
        *base.unnamed_layers(measured, "set fsdp_transformer_layer_cls_to_wrap to yours"),
    )
    files = {
        FILE: base.header(case, launch, notes, differs) + "\n" + _yaml(_config(measured)),
        SCRIPT: f"# Use with {FILE}, which has the settings and the launch command.\n\n{_script(measured)}",
        **deepspeed_json.files(measured),
    }
    return ExportedFiles(files, launch, notes, tuple(differs))


def _differs(measured: ExportedCase) -> list[str]:
    fsdp = measured.fsdp
    if measured.zero:
        return deepspeed_json.differs(measured)
    sharded = fsdp and fsdp.version == 2
    sentences = {
        "Accelerate shards the embedding and the head of a transformers model as separate units": sharded,
        "Accelerate keeps the root's parameters unsharded after forward; the case resharded them": (
            fsdp and sharded and fsdp.reshard_root
        ),
        f"Accelerate's {measured.case.precision.compute} is torch.autocast here, which keeps some operations "
        "in fp32 and caches cast weights; the case cast every parameter, as --as torch does": (
            not fsdp and measured.is_mixed
        ),
    }
    return base.applicable(sentences)


def _config(measured: ExportedCase) -> dict[str, Any]:
    case, fsdp = measured.case, measured.fsdp
    config: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": _type(measured),
        "num_machines": measured.nodes,
        "num_processes": case.world_size,
        "machine_rank": 0,
        "main_training_function": "main",
        **({"main_process_ip": base.FIRST_NODE, "main_process_port": 29500} if measured.nodes > 1 else {}),
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": case.device == "cpu",
    }
    if measured.zero:
        # the precision is in DeepSpeed's own file; giving it twice is an error
        section = {"deepspeed_config_file": deepspeed_json.FILE, "zero3_init_flag": measured.zero.stage == 3}
        return {**config, "deepspeed_config": section}
    config["mixed_precision"] = _precision(measured)
    if fsdp:
        config["fsdp_config"] = _fsdp_config(measured, fsdp)
        if "dp_replicate" in fsdp.mesh_sizes(case.world_size):
            config["parallelism_config"] = {
                f"parallelism_config_{dimension}_size": ranks
                for dimension, ranks in fsdp.mesh_sizes(case.world_size).items()
            }
    return config


def _type(measured: ExportedCase) -> str:
    if measured.zero or measured.fsdp:
        return "DEEPSPEED" if measured.zero else "FSDP"
    if measured.case.world_size == 1:
        return "NO"
    return "MULTI_CPU" if measured.case.device == "cpu" else "MULTI_GPU"


def _precision(measured: ExportedCase) -> str:
    """Accelerate's name of the precision; FSDP gets its dtypes from a policy instead."""
    return "no" if measured.fsdp or not measured.is_mixed else measured.case.precision.compute


def _fsdp_config(measured: ExportedCase, fsdp: FullyShardedDataParallel) -> dict[str, Any]:
    config = {**_fsdp.config(measured, fsdp), "offload_params": fsdp.cpu_offload}
    if "transformer_layer_cls_to_wrap" in config:
        config["transformer_layer_cls_to_wrap"] = ",".join(config["transformer_layer_cls_to_wrap"])
    if fsdp.version == 1:
        config |= {"sharding_strategy": _fsdp.SHARDING_STRATEGIES[fsdp.sharding], "forward_prefetch": False}
    return {f"fsdp_{key}": value for key, value in config.items()}


def _yaml(config: dict[str, Any]) -> str:
    rows = []
    for key, value in config.items():
        if isinstance(value, dict):
            rows += [f"{key}:", *(f"  {name}: {_value(inner)}" for name, inner in value.items())]
        else:
            rows.append(f"{key}: {_value(value)}")
    return "\n".join(rows) + "\n"


def _value(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _script(measured: ExportedCase) -> str:
    recomputes = measured.case.activation_checkpointing != "none" and not measured.fsdp
    rate = "" if measured.zero else _optimizer.rate(measured.case.optimizer)
    parts = (
        lines(
            "import functools" if recomputes else "",
            "import math\n" if "math." in rate else "",
            "from functools import partial\n" if _python.kept(measured.case) else "",
            "" if measured.zero else _optimizer.imports(measured.case.optimizer),
            "import torch",
            "from accelerate import Accelerator",
            _python.FLOAT8_IMPORT if _python.float8(measured.case) else "",
            f"from accelerate.utils import {', '.join([*_names(measured), 'GradientAccumulationPlugin'])}",
            f"from torch.distributed.fsdp import {_policy_class(measured.fsdp)}" if measured.fsdp else "",
            _python.recomputation_imports(measured.case) if recomputes else "",
        ),
        _setup(measured),
        rate,
        "" if measured.zero else _optimizer.joined(measured.case.optimizer),
        _python.kept(measured.case),
        _python.RECOMPUTE if recomputes else "",
        _prepare(measured, recomputes=recomputes),
        _train(measured),
    )
    return "\n\n".join(part.strip("\n") + "\n" for part in parts if part)


def _names(measured: ExportedCase) -> list[str]:
    if measured.ddp:
        return ["DDPCommunicationHookType"] * _python.compresses(measured) + ["DistributedDataParallelKwargs"]
    return ["DummyOptim"] if measured.zero else ["FullyShardedDataParallelPlugin"] if measured.fsdp else []


def _policy_class(fsdp: FullyShardedDataParallel) -> str:
    return "MixedPrecisionPolicy" if fsdp.version == 2 else "MixedPrecision"


def _setup(measured: ExportedCase) -> str:
    case = measured.case
    plugin = block(f"""
        gradient_accumulation_plugin=GradientAccumulationPlugin(
            num_steps={case.batch.gradient_accumulation_steps!r},
            adjust_scheduler=False,
            sync_with_dataloader=False,
            sync_each_batch={bool(measured.fsdp and measured.fsdp.reduce_each_micro_batch)},
        ),
    """)
    arguments = indent(lines(_arguments(measured), plugin), "    ")
    body = lines(_python.determinism(case), "return Accelerator(", arguments, ")")
    return function("setup()", "Return the Accelerator; call it before the model is built.", body)


def _arguments(measured: ExportedCase) -> str:
    case, ddp, fsdp = measured.case, measured.ddp, measured.fsdp
    if measured.zero:
        return ""
    own = ""
    if fsdp:
        policy = f"{_policy_class(fsdp)}({_fsdp.policy(case)})"
        own = f"fsdp_plugin=FullyShardedDataParallelPlugin(\n    mixed_precision_policy={policy}\n),"
    if ddp:
        asked = ddp.explicit_bucket_cap_mb
        hook = f"    comm_hook=DDPCommunicationHookType.{case.precision.reduce.upper()},"
        own = lines(
            "kwargs_handlers=[DistributedDataParallelKwargs(",
            hook if _python.compresses(measured) else "",
            f"    bucket_cap_mb={asked!r}," if asked else "",
            f"    gradient_as_bucket_view={ddp.gradient_as_bucket_view!r},",
            f"    static_graph={ddp.static_graph!r},",
            f"    find_unused_parameters={ddp.find_unused_parameters!r},",
            ")],",
        )
    return lines(f"cpu={case.device == 'cpu'},", f'mixed_precision="{_precision(measured)}",', own)


def _prepare(measured: ExportedCase, *, recomputes: bool) -> str:
    master, make = _python.cast_to_master(measured.case), _optimizer.make(measured.case)
    if measured.zero:
        master = ""
        make = f"optimizer = DummyOptim(model.parameters())  # configured in {deepspeed_json.FILE}"
    own = _python.recomputation(measured.case) if recomputes else ""
    checkpoint = lines(_python.float8(measured.case), own, _python.compiled(measured.case))
    body = lines(master, checkpoint, make, "return accelerator.prepare(model, optimizer, loader)")
    doc = "Return wrapped model, optimizer and loader; *loader* yields micro-batches of all ranks' data."
    return function("prepare(accelerator, model, layers, loader)", doc, body)


def _train(measured: ExportedCase) -> str:
    limit = measured.case.optimizer.clip_grad_norm
    clip = f"if accelerator.sync_gradients:\n    accelerator.clip_grad_norm_(model.parameters(), {limit!r})"
    micro_batch = lines(
        "loss = loss_of(model, batch)",
        "accelerator.backward(loss)",
        "" if limit is None or measured.zero else clip,
        "optimizer.step()",
        "optimizer.zero_grad()",
    )
    body = lines(
        "losses = []",
        "for batch in loader:",
        "    with accelerator.accumulate(model):",
        indent(micro_batch, " " * 8),
        "    losses.append(loss.detach())",
        "    if accelerator.sync_gradients:",
        "        yield torch.stack(losses).mean()",
        "        losses = []",
    )
    number = measured.case.batch.gradient_accumulation_steps
    doc = f"Yield this rank's mean loss per update; an update uses {number} batches of *loader*."
    return function("train(accelerator, model, optimizer, loader, loss_of)", doc, body)
