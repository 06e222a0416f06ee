"""``accelerate``: the file for ``accelerate launch``, and the calls that a script makes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from distbench.adopt import deepspeed_config
from distbench.adopt.exported_case import (
    FSDP1_STRATEGIES,
    ExportedCase,
    ExportedFiles,
    loss_scale_problems,
)
from distbench.adopt.instructions import (
    COMMON_NOTES,
    FIRST_NODE,
    command,
    header,
    matrix_optimizer_note,
    split_note,
    torchrun,
    unit_differences,
    unnamed_layers,
)
from distbench.adopt.script_templates import render, script_context
from distbench.strategies.dp import DataParallel
from distbench.strategies.fsdp import FullyShardedDataParallel

FILE, SCRIPT = "accelerate.yaml", "adopted_accelerate.py"

_NOTES = (
    f"In train.py, with {SCRIPT} next to it or pasted in: accelerator = setup(); build the model; "
    "model, optimizer, loader = prepare(accelerator, model, layers, loader), where layers are the modules "
    "to checkpoint individually; then train(accelerator, model, optimizer, loader, loss_of) yields one loss "
    f"per update. Accelerate's file has no optimizer, batch size or clipping: {SCRIPT} sets them.",
    *COMMON_NOTES,
)
_ON_CPUS = "On CPUs accelerate launch needs mpirun; torchrun starts the same ranks without it."


def problems(measured: ExportedCase) -> Iterator[str]:
    """Yield reasons why Accelerate can't express this case."""
    fsdp, on_cpu = measured.fsdp, measured.case.device == "cpu"
    if isinstance(measured.strategy, DataParallel):
        yield "Accelerate has no nn.DataParallel"
    if fsdp and on_cpu:
        # its state.py converts only MULTI_GPU and the like to FSDP
        yield "Accelerate (observed with 1.15) shards only on accelerators; on CPUs it silently runs DDP"
    if fsdp and fsdp.version == 1 and fsdp.sharding == "hybrid":
        yield "Accelerate passes no mesh to FSDP1, so it can't set the number of replicas of a hybrid shard"
    if fsdp and measured.case.activation_checkpointing == "selective":
        yield "Accelerate's FSDP recomputes whole layers; the case kept matrix products and attention"
    yield from loss_scale_problems(measured, "Accelerate")


def write(measured: ExportedCase) -> ExportedFiles:
    """The case as Accelerate's file and the calls of a script."""
    case, differs = measured.case, tuple(_differs(measured))
    on_cpu = case.device == "cpu"
    launch = command(measured, "accelerate", "launch", "--config_file", FILE, "train.py")
    if on_cpu:
        launch = torchrun(measured)
    notes = (
        *measured.size_notes,
        *_NOTES,
        *matrix_optimizer_note(measured),
        *([_ON_CPUS] if on_cpu else []),
        *split_note(measured),
        *deepspeed_config.notes(measured),
        *unnamed_layers(measured, "set fsdp_transformer_layer_cls_to_wrap to yours"),
    )
    files = {
        FILE: header(case, launch, notes, differs) + "\n" + _yaml(_config(measured)),
        SCRIPT: _script(measured),
        **deepspeed_config.files(measured),
    }
    return ExportedFiles(files, launch, notes, differs)


def _differs(measured: ExportedCase) -> Iterator[str]:
    fsdp, compute = measured.fsdp, measured.case.precision.compute
    yield from deepspeed_config.differs(measured)
    if fsdp and fsdp.version == 2:
        yield "Accelerate shards the embedding and the head of a transformers model as separate units"
    if fsdp and fsdp.version == 2 and fsdp.reshard_root:
        yield "Accelerate keeps the root's parameters unsharded after forward; the case resharded them"
    yield from unit_differences(measured, "Accelerate")
    if measured.is_mixed and not (fsdp or measured.zero):
        yield (
            f"Accelerate's {compute} is torch.autocast here, which keeps some operations in fp32 and caches "
            "cast weights; the case cast every parameter, as --as torch does"
        )


def _config(measured: ExportedCase) -> dict[str, Any]:
    case, fsdp = measured.case, measured.fsdp
    config: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": _type(measured),
        "num_machines": measured.nodes,
        "num_processes": case.world_size,
        "machine_rank": 0,
        "main_training_function": "main",
        **({"main_process_ip": FIRST_NODE, "main_process_port": 29500} if measured.nodes > 1 else {}),
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": case.device == "cpu",
    }
    if measured.zero:
        # the precision is in DeepSpeed's own file; giving it twice is an error
        section = {
            "deepspeed_config_file": deepspeed_config.FILE,
            "zero3_init_flag": measured.zero.stage == 3,
        }
        return {**config, "deepspeed_config": section}
    config["mixed_precision"] = _precision(measured)
    if measured.is_split_by_plan and case.device != "cpu":
        config["parallelism_config"] = {"parallelism_config_tp_size": case.world_size}
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
    config = {**fsdp_settings(measured, fsdp), "offload_params": fsdp.cpu_offload}
    if "transformer_layer_cls_to_wrap" in config:
        config["transformer_layer_cls_to_wrap"] = ",".join(config["transformer_layer_cls_to_wrap"])
    if fsdp.version == 1:
        config |= {"sharding_strategy": FSDP1_STRATEGIES[fsdp.sharding], "forward_prefetch": False}
    return {f"fsdp_{key}": value for key, value in config.items()}


def fsdp_settings(measured: ExportedCase, strategy: FullyShardedDataParallel) -> dict[str, Any]:
    """Settings of FSDP in the files of Accelerate and of Trainer, except for Accelerate's prefix."""
    classes = measured.layer_classes
    shared: dict[str, Any] = {
        "version": strategy.version,
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        **({"transformer_layer_cls_to_wrap": classes} if classes else {}),
        "activation_checkpointing": measured.case.activation_checkpointing == "full",
        "cpu_ram_efficient_loading": False,
        "state_dict_type": "SHARDED_STATE_DICT",
    }
    if strategy.version == 2:
        return {**shared, "reshard_after_forward": strategy.sharding != "grad_op"}
    # prefetching is torch's default, but not Accelerate's
    own = {"use_orig_params": True, "sync_module_states": False, "backward_prefetch": "BACKWARD_PRE"}
    return shared | own


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
    own = {
        "config_file": FILE,
        "deepspeed_file": deepspeed_config.FILE,
        "accelerate_precision": _precision(measured),
        # FSDP recomputes layers by its own setting
        "recomputes": measured.case.activation_checkpointing != "none" and not measured.fsdp,
    }
    return render("accelerate.py.j2", script_context(measured) | own)
