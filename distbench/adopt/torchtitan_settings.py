"""Settings that the versions of torchtitan share, with the device mesh of a case.

Read in torchtitan/config/job_config.py, torchtitan/distributed and torchtitan/models/llama3/infra of v0.2.2,
and in torchtitan/config/configs.py and torchtitan/distributed of v0.3.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from distbench import optimizers
from distbench.adopt.exported_case import ExportedCase
from distbench.adopt.instructions import unit_differences
from distbench.adopt.pipeline_stages import layers_of_stages
from distbench.core import lr_schedule
from distbench.core.case import OptimizerConfig
from distbench.core.dtypes import TORCH_DTYPE_NAMES
from distbench.strategies.pp import PipelineParallel
from distbench.strategies.theory.pipeline_parallelism import split_evenly

EACH_MICRO_BATCH = "torchtitan reduces after every micro-batch, the case once per step"
SAME_TOKENS = (
    "torchtitan sums the loss over tokens and divides by their number in the global batch: equal to the case "
    "if every sample has the same number of tokens."
)
_DTYPES = ("fp32", "fp32", "fp32"), ("bf16", "fp32", "fp32")
"""Supported dtypes for compute, reduction and master weights."""
_DIMENSIONS = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
NAMED_STAGES = "module_fqns_per_model_part has the layers of the measured model: replace them with yours"


def problems(measured: ExportedCase) -> Iterator[str]:
    """Yield reasons why no version can express this case."""
    case, fsdp = measured.case, measured.fsdp
    if case.device == "cpu":
        yield "torchtitan trains only on accelerators; the case was measured on CPUs"
    if fsdp and fsdp.version != 2:
        yield "torchtitan supports only FSDP2"
    splits = measured.tensor_parallelism or measured.pipeline or measured.context_parallelism
    if not (fsdp or measured.ddp or splits):
        yield (
            "torchtitan has FSDP2, DDP, tensor, pipeline and context parallelism, not " + case.strategy.name
        )
    if case.optimizer.name not in ("adamw", "adam"):
        yield f"torchtitan supports Adam and AdamW, not {case.optimizer.name}"
    dtypes = (case.precision.compute, case.precision.reduce, case.precision.master)
    if dtypes not in _DTYPES:
        yield (
            "torchtitan computes in fp32 or bf16, reduces in fp32 and keeps fp32 weights; the case has "
            "compute {}, reduce {}, master {}".format(*dtypes)
        )
    if fsdp and not fsdp.reduce_each_micro_batch:
        yield EACH_MICRO_BATCH
    if case.compile not in ("none", "default"):
        yield f"torchtitan compiles in torch's default mode, not in {case.compile}"
    if case.optimizer.schedule == "inverse_sqrt":
        yield "torchtitan has no inverse-square-root schedule of the learning rate"


def differences(measured: ExportedCase) -> Iterator[str]:
    """Yield settings that no version can express."""
    yield from unit_differences(measured, "torchtitan")
    if measured.case.activation_checkpointing == "selective":
        yield "torchtitan's selective checkpointing keeps every second matrix product; the case kept all"
    if mesh_sizes(measured)["dp_shard"] > 1 or measured.fsdp or measured.context_parallelism:
        yield "torchtitan shards embedding, final norm and output head as separate units"
    if measured.pipeline and measured.pipeline.reshard_after_forward:
        yield "torchtitan reshards norm and head after forward too; the case kept them unsharded"


def training(measured: ExportedCase, max_norm: float) -> dict[str, Any]:
    """Section ``training``, with gradients clipped at *max_norm*."""
    case, batch = measured.case, measured.case.batch
    return {
        # the step at which the decay of the learning rate ends
        **({"steps": case.optimizer.total_steps} if case.optimizer.total_steps else {}),
        "local_batch_size": batch.micro_batch_size,
        "global_batch_size": batch.global_batch_size,
        "max_norm": max_norm,
        "dtype": TORCH_DTYPE_NAMES[case.precision.master],
        "mixed_precision_param": TORCH_DTYPE_NAMES[case.precision.compute],
        "mixed_precision_reduce": TORCH_DTYPE_NAMES[case.precision.reduce],
        "enable_cpu_offload": bool(measured.fsdp and measured.fsdp.cpu_offload),
    }


def clipping(spec: OptimizerConfig) -> float:
    """Norm at which gradients are clipped; torchtitan always clips, and with infinity only measures."""
    return float("inf") if spec.clip_grad_norm is None else spec.clip_grad_norm


def implementation(spec: OptimizerConfig) -> str:
    """Kernel of the optimizer."""
    return {"loop": "for-loop"}.get(spec.kernel, spec.kernel)


def optimizer_name(spec: OptimizerConfig) -> str:
    """Class of the optimizer."""
    return optimizers.entry_of(spec).class_name


def scheduler(spec: OptimizerConfig) -> dict[str, Any]:
    """Schedule by torchtitan's formula: update k has (k + 1) / warmup_steps; decay ends at training.steps."""
    if spec.schedule not in lr_schedule.FINITE_SCHEDULES or not spec.total_steps:
        # a decay that ends where it starts
        return {"warmup_steps": spec.warmup_steps, "min_lr_factor": 1.0}
    return {
        "warmup_steps": spec.warmup_steps,
        "decay_ratio": 1 - lr_schedule.decay_start(spec) / spec.total_steps,
        "decay_type": "cosine" if spec.schedule == "cosine" else "linear",
        "min_lr_factor": spec.final_lr_fraction,
    }


def mesh_sizes(measured: ExportedCase) -> dict[str, int]:
    """Size of each dimension of the mesh."""
    sizes = measured.strategy.mesh_sizes(measured.case.world_size)
    return {name: sizes.get(name, 1) for name in _DIMENSIONS}


def parallelism(measured: ExportedCase, head: str) -> dict[str, Any]:
    """Keys of the section that all versions have; *head* is their name of the output head."""
    mesh = mesh_sizes(measured)
    return {
        "data_parallel_replicate_degree": mesh["dp_replicate"],
        "data_parallel_shard_degree": mesh["dp_shard"],
        "fsdp_reshard_after_forward": _resharding(measured),
        "tensor_parallel_degree": mesh["tp"],
        "pipeline_parallel_degree": mesh["pp"],
        **(_stages(measured, measured.pipeline, head) if measured.pipeline else {}),
        "context_parallel_degree": mesh["cp"],
    }


def _resharding(measured: ExportedCase) -> str:
    if pipeline := measured.pipeline:
        return "always" if pipeline.reshard_after_forward else "never"
    if not (fsdp := measured.fsdp):
        return "default"
    return "never" if fsdp.sharding == "grad_op" else "always" if fsdp.reshard_root else "default"


def _stages(measured: ExportedCase, pipeline: PipelineParallel, head: str) -> dict[str, Any]:
    """Schedule and stages: by rule if torchtitan's rule gives those of the case, otherwise by name."""
    micro_batch = measured.case.batch.micro_batch_size
    layers = layers_of_stages(measured, pipeline)
    settings: dict[str, Any] = {
        "pipeline_parallel_schedule": pipeline.schedule,
        "pipeline_parallel_microbatch_size": micro_batch // pipeline.micro_batches,
    }
    # two stages per rank if the schedule allows several, with equally many layers
    is_rule = pipeline.stages_on_rank == (1 if 1 in pipeline.schedule_rules.stages_per_rank else 2)
    if is_rule and layers == split_evenly(layers[-1].stop, len(layers)):
        # otherwise it would omit layers in the stages of embedding and head
        less = ("pipeline_parallel_first_stage_less_layers", "pipeline_parallel_last_stage_less_layers")
        return settings | dict.fromkeys(less, 0)
    names = [[f"layers.{layer}" for layer in stage] for stage in layers]
    names[0], names[-1] = ["tok_embeddings", *names[0]], [*names[-1], "norm", head]
    return settings | {"module_fqns_per_model_part": names}
