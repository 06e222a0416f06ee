"""Section ``parallelism`` of torchtitan: the device mesh of a case.

Read in torchtitan/config/job_config.py, torchtitan/distributed and torchtitan/models/llama3/infra of v0.2.2,
and in torchtitan/config/configs.py and torchtitan/distributed of v0.3.0.
"""

from __future__ import annotations

from typing import Any

from distbench.adopt import _pipeline_stages
from distbench.adopt.base import ExportedCase
from distbench.core import registry
from distbench.strategies._pipeline import split_evenly
from distbench.strategies.pp import PipelineParallel

_DIMENSIONS = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
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
NAMED = "module_fqns_per_model_part has the layers of the measured model: replace them with yours"


def sizes(measured: ExportedCase) -> dict[str, int]:
    """Size of each dimension of the mesh."""
    told = measured.strategy.mesh_sizes(measured.case.world_size)
    return {name: told.get(name, 1) for name in _DIMENSIONS}


def scale_to_torchtitan(measured: ExportedCase, value: float) -> float:
    """Scale *value*, set for gradients of the case, to torchtitan's larger or smaller gradients."""
    return value * _gradient_multiplier(measured) / _gradient_divisor(measured)


def weight_decay(measured: ExportedCase) -> float:
    """Weight decay for torchtitan's gradients: Adam adds it to them, AdamW subtracts it from the weights."""
    spec = measured.case.optimizer
    return spec.weight_decay if spec.name == "adamw" else scale_to_torchtitan(measured, spec.weight_decay)


def parallelism(measured: ExportedCase, head: str) -> dict[str, Any]:
    """Keys of the section that all versions have; *head* is their name of the output head."""
    mesh = sizes(measured)
    return {
        "data_parallel_replicate_degree": mesh["dp_replicate"],
        "data_parallel_shard_degree": mesh["dp_shard"],
        "fsdp_reshard_after_forward": _resharding(measured),
        "tensor_parallel_degree": mesh["tp"],
        "pipeline_parallel_degree": mesh["pp"],
        **(_stages(measured, measured.pipeline, head) if measured.pipeline else {}),
        "context_parallel_degree": mesh["cp"],
    }


def units(measured: ExportedCase) -> dict[str, object]:
    """Module that torchtitan shards separately -> whether the case has it."""
    shards = sizes(measured)["dp_shard"] > 1 or measured.fsdp or measured.context_parallelism
    return {
        "torchtitan shards embedding, final norm and output head as separate units": shards,
        "torchtitan reshards norm and head after forward too; the case kept them unsharded": (
            measured.pipeline and measured.pipeline.reshard_after_forward
        ),
    }


def differences(measured: ExportedCase) -> dict[str, object]:
    """Setting that the section of 0.2.2 can't express -> whether it applies to the case."""
    pipeline, keys = measured.pipeline, _scaled_keys(measured)
    return {
        **units(measured),
        _SUMS.format(keys=keys, tokens=_gradient_multiplier(measured)): pipeline,
        _MEANS.format(keys=keys, ranks=_gradient_divisor(measured)): _gradient_divisor(measured) > 1,
        NAMED: "module_fqns_per_model_part" in parallelism(measured, ""),
    }


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
    mesh = sizes(measured)
    return mesh["dp_replicate"] if mesh["dp_shard"] * mesh["cp"] == 1 else 1


def _scaled_keys(measured: ExportedCase) -> str:
    is_decoupled = measured.case.optimizer.name == "adamw" or not measured.case.optimizer.weight_decay
    return "max_norm and eps" if is_decoupled else "max_norm, eps and weight_decay"


def _resharding(measured: ExportedCase) -> str:
    if pipeline := measured.pipeline:
        return "always" if pipeline.reshard_after_forward else "never"
    if not (fsdp := measured.fsdp):
        return "default"
    return "never" if fsdp.sharding == "grad_op" else "always" if fsdp.reshard_root else "default"


def _stages(measured: ExportedCase, pipeline: PipelineParallel, head: str) -> dict[str, Any]:
    """Schedule and stages: by rule if torchtitan's rule gives those of the case, otherwise by name."""
    micro_batch = measured.case.batch.micro_batch_size
    layers = _pipeline_stages.layers_of_stages(measured, pipeline)
    told: dict[str, Any] = {
        "pipeline_parallel_schedule": pipeline.schedule,
        "pipeline_parallel_microbatch_size": micro_batch // pipeline.micro_batches,
    }
    # two stages per rank if the schedule allows several, with equally many layers
    is_rule = pipeline.stages_on_rank == (1 if 1 in pipeline.schedule_rules.stages_per_rank else 2)
    if is_rule and layers == split_evenly(layers[-1].stop, len(layers)):
        # otherwise it would omit layers in the stages of embedding and head
        less = ("pipeline_parallel_first_stage_less_layers", "pipeline_parallel_last_stage_less_layers")
        return told | dict.fromkeys(less, 0)
    names = [[f"layers.{layer}" for layer in stage] for stage in layers]
    names[0], names[-1] = ["tok_embeddings", *names[0]], [*names[-1], "norm", head]
    return told | {"module_fqns_per_model_part": names}
