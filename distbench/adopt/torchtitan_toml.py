"""``torchtitan-toml``: a TOML file with the keys of torchtitan 0.2.2, the last release that reads one."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from distbench.adopt import torchtitan_settings as shared
from distbench.adopt.exported_case import ExportedCase, ExportedFiles
from distbench.adopt.instructions import TRAINING_NOTES, header, torchrun
from distbench.core import registry
from distbench.core.case import PrecisionConfig

FILE = "torchtitan.toml"

_NOTES = (
    "For torchtitan 0.2.2 (torchtitan/config/job_config.py), whose parser accepts files like this one; "
    "no training was run with them. torchtitan 0.3 can't read it: use --as torchtitan for that version.",
    "Add your own [model], data and sequence length: torchtitan trains its own models, not the case's.",
    shared.SAME_TOKENS,
    *TRAINING_NOTES,
)
_SUMS = (
    "torchtitan 0.2.2 does not divide the gradients of a pipeline by the tokens of an update, only the "
    "logged loss (a later commit, f4a575f60, does): {keys} are the case's values times {tokens:,}, its "
    "tokens per update; change them for another batch, sequence length or version of torchtitan"
)
_MEANS = (
    "torchtitan 0.2.2 divides the loss by the tokens of all ranks, and DDP divides the gradients by "
    "the number of ranks once more: {keys} are the case's values divided by {ranks}, its ranks; change "
    "them for another number of ranks or version of torchtitan"
)


def problems(measured: ExportedCase) -> Iterator[str]:
    """Yield reasons why torchtitan 0.2.2 can't express this case."""
    mesh, tp = shared.mesh_sizes(measured), measured.tensor_parallelism
    yield from shared.problems(measured)
    if tp and not tp.sequence_parallel:
        yield "torchtitan 0.2.2's tensor parallelism always uses sequence parallelism"
    if mesh["dp_replicate"] > 1 and mesh["dp_shard"] == 1 and len(measured.mesh) > 1:
        yield (
            "torchtitan 0.2.2 supports DDP (replicas without sharding) only if the mesh has no other "
            "dimension"
        )
    is_sharded, is_split = mesh["dp_shard"] * mesh["cp"] > 1, mesh["tp"] > 1 or mesh["pp"] > 1
    if measured.is_mixed and is_split and not is_sharded:
        yield (
            "without sharding torchtitan 0.2.2's tensor and pipeline parallelism use fp32, not "
            f"{measured.case.precision.compute}"
        )


def write(measured: ExportedCase) -> ExportedFiles:
    """The case as torchtitan's file."""
    launch = torchrun(measured, "-m", "torchtitan.train", f"--job.config_file={FILE}")
    differs = tuple(_differs(measured))
    text = header(measured.case, launch, _NOTES, differs) + _toml(_config(measured))
    return ExportedFiles({FILE: text}, launch, _NOTES, differs)


def _differs(measured: ExportedCase) -> Iterator[str]:
    ddp = measured.ddp
    if ddp:
        yield f"torchtitan's DDP has buckets of 100 MiB, the case of {ddp.bucket_cap_mb:g} MiB"
    yield from shared.differences(measured)
    yield from _gradient_differences(measured)
    if "module_fqns_per_model_part" in _parallelism(measured):
        yield shared.NAMED_STAGES
    if ddp and measured.is_mixed:
        yield "bf16 with DDP is torch.autocast in torchtitan; the case cast every parameter"
    if ddp and measured.case.batch.gradient_accumulation_steps > 1:
        yield shared.EACH_MICRO_BATCH
    if ddp and (ddp.gradient_as_bucket_view or ddp.static_graph):
        yield "torchtitan sets neither gradient_as_bucket_view nor static_graph of DDP"
    if ddp and ddp.find_unused_parameters:
        yield "torchtitan does not set find_unused_parameters of DDP"


def _config(measured: ExportedCase) -> dict[str, dict[str, Any]]:
    case, spec = measured.case, measured.case.optimizer
    max_norm = scale_to_torchtitan(measured, shared.clipping(spec))
    is_checkpointed = case.activation_checkpointing != "none"
    return {
        "optimizer": {
            "name": shared.optimizer_name(spec),
            "lr": spec.lr,
            "beta1": spec.betas[0],
            "beta2": spec.betas[1],
            "eps": scale_to_torchtitan(measured, spec.eps),
            "weight_decay": _weight_decay(measured),
            "implementation": shared.implementation(spec),
        },
        "lr_scheduler": shared.scheduler(spec),
        "training": shared.training(measured, max_norm),
        "parallelism": _parallelism(measured),
        "activation_checkpoint": {
            "mode": case.activation_checkpointing,
            **({"selective_ac_option": "op"} if case.activation_checkpointing == "selective" else {}),
            # recomputation stops after the last required tensor
            **({"early_stop": True} if is_checkpointed else {}),
        },
        "compile": {"enable": case.compile != "none", "components": ["model"]},
        "debug": {"seed": case.seed},
        **_float8(case.precision),
    }


def _float8(precision: PrecisionConfig) -> dict[str, dict[str, Any]]:
    """Sections of torchao's float8 converter; none if the case has none."""
    if precision.float8 == "none":
        return {}
    return {
        "model": {"converters": ["quantize.linear.float8"]},
        # the head is not among the case's layers
        "quantize.linear.float8": {"recipe_name": precision.float8, "filter_fqns": ["output"]},
    }


def _parallelism(measured: ExportedCase) -> dict[str, Any]:
    over, pipeline = measured.tensor_parallelism, measured.pipeline
    # same as in torch's own ring, which the case ran
    ring = {"context_parallel_load_balancer": "headtail", "context_parallel_rotate_method": "allgather"}
    return {
        **shared.parallelism(measured, head="output"),
        **({"disable_loss_parallel": not over.loss_parallel} if over else {}),
        # meant for experts; it replaces the schedule's overlap of two micro-batches
        **(
            {"pipeline_parallel_expert_parallel_overlap": False}
            if pipeline and pipeline.schedule == "DualPipeV"
            else {}
        ),
        **(ring if measured.context_parallelism else {}),
    }


def scale_to_torchtitan(measured: ExportedCase, value: float) -> float:
    """Scale *value*, set for gradients of the case, to torchtitan's larger or smaller gradients."""
    return value * _gradient_multiplier(measured) / _gradient_divisor(measured)


def _weight_decay(measured: ExportedCase) -> float:
    """Weight decay for torchtitan's gradients: Adam adds it to them, AdamW subtracts it from the weights."""
    spec = measured.case.optimizer
    return spec.weight_decay if spec.name == "adamw" else scale_to_torchtitan(measured, spec.weight_decay)


def _gradient_differences(measured: ExportedCase) -> Iterator[str]:
    """Yield settings that are scaled to torchtitan's gradients."""
    keys, divisor = _scaled_keys(measured), _gradient_divisor(measured)
    if measured.pipeline:
        yield _SUMS.format(keys=keys, tokens=_gradient_multiplier(measured))
    if divisor > 1:
        yield _MEANS.format(keys=keys, ranks=divisor)


def _gradient_multiplier(measured: ExportedCase) -> int:
    """Factor by which torchtitan's gradients of a pipeline are larger, as it does not divide them."""
    if not measured.pipeline:
        return 1
    shape = registry.create_plugin("workloads", measured.case.workload).shape
    return int(measured.case.batch.global_batch_size * shape.sample_length)


def _gradient_divisor(measured: ExportedCase) -> int:
    """Factor by which torchtitan's gradients are smaller, as it divides them twice.

    It disables the division only for FSDP (``disable_fsdp_gradient_division``), HSDP included.
    """
    mesh = shared.mesh_sizes(measured)
    return mesh["dp_replicate"] if mesh["dp_shard"] * mesh["cp"] == 1 else 1


def _scaled_keys(measured: ExportedCase) -> str:
    is_decoupled = measured.case.optimizer.name == "adamw" or not measured.case.optimizer.weight_decay
    return "max_norm and eps" if is_decoupled else "max_norm, eps and weight_decay"


def _value(value: Any) -> str:
    """TOML text of *value*: like JSON, except for infinity and for characters that JSON may escape."""
    return "inf" if value == math.inf else json.dumps(value, ensure_ascii=False)


def _toml(config: dict[str, dict[str, Any]]) -> str:
    sections = []
    for name, values in config.items():
        rows = [f"{key} = {_value(value)}\n" for key, value in values.items()]
        sections.append(f"\n[{name}]\n{''.join(rows)}")
    return "".join(sections)
