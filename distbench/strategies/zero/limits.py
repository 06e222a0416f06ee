"""Why DeepSpeed can't train a case as requested, found before launch. Without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distbench.core import meshes
from distbench.core.case import Case
from distbench.core.machine import Machine
from distbench.optimizers import Cut
from distbench.strategies._deepspeed import ops
from distbench.strategies._deepspeed.releases import LAST, REMOVAL, REMOVED_IN, release
from distbench.strategies._model_states import state_problem
from distbench.strategies._unused import unused_option
from distbench.strategies.zero.pipeline import MICRO_BATCHES

if TYPE_CHECKING:
    from distbench.strategies.zero import Zero


def problem(strategy: Zero, case: Case, machine: Machine) -> str | None:
    """Why *case* can't be trained with *strategy* on *machine*, or None; its tools aside."""
    cut: Cut = "flat" if strategy.stage else "rows" if strategy.tensor_parallelism.devices > 1 else "whole"
    return (
        _unused(strategy)
        or _of_options(strategy, case)
        or _of_precision(case)
        or _of_disk(strategy, machine)
        or _of_groups(strategy, case, "hpz_partition_size")
        or _of_groups(strategy, case, "mics_shard_size")
        or _of_mics(strategy, machine)
        or _of_quantized(strategy, case)
        or _of_mesh(strategy, case)
        or state_problem(case, cut, f"ZeRO {strategy.stage}")
    )


def _unused(strategy: Zero) -> str | None:
    stage_3 = strategy.stage == 3, "stage: 3"
    usual = type(strategy)(stage=strategy.stage)
    return unused_option(
        strategy,
        usual,
        {
            "reduce_bucket_size": (strategy.stage > 0, "stage: 1, 2 or 3"),
            "allgather_bucket_size": (strategy.stage in (1, 2), "stage: 1 or 2"),
            "param_persistence_threshold": stage_3,
            "max_live_parameters": stage_3,
            "max_reuse_distance": stage_3,
            "prefetch_bucket_size": stage_3,
            "nvme_path": ("nvme" in strategy.offloads, "offload to nvme"),
        },
    )


def _of_options(strategy: Zero, case: Case) -> str | None:
    """Why the options don't go together."""
    if strategy.offload_optimizer != "none" and strategy.stage == 0:
        return "stage = 0: DeepSpeed can offload the optimizer only from stage 1 on"
    if strategy.offload_parameters != "none" and strategy.stage != 3:
        return f"stage = {strategy.stage}: DeepSpeed can offload parameters only in stage 3"
    if strategy.overlap_comm and strategy.stage == 0:
        return "overlap_comm: in stage 0 DeepSpeed always reduces gradients after the backward pass"
    if strategy.grad_accum_dtype == "bf16" and (strategy.stage == 0 or case.precision.compute != "bf16"):
        given = f"stage = {strategy.stage}, precision.compute = {case.precision.compute}"
        return f"grad_accum_dtype = bf16 needs stage 1, 2 or 3 and precision: bf16, not {given}"
    if strategy.pipeline is None and strategy.micro_batches != MICRO_BATCHES:
        return (
            f"micro_batches = {strategy.micro_batches}: only a pipeline splits micro-batches; set "
            "mesh: {pp: 2}, or leave micro_batches out"
        )
    if strategy.optimizer_kernel == "deepspeed" and case.optimizer.name != "adamw":
        return f"optimizer.name = {case.optimizer.name}: DeepSpeed's kernel supports only adamw"
    if strategy.stage == 3 and "none" not in (case.compile, case.activation_checkpointing):
        # its hooks carry torch.compiler.disable, which torch can't leave out of a checkpoint (gb0098)
        return (
            "stage = 3 gathers parameters inside each layer, and torch can't compile such a layer with "
            "activation checkpointing, so nothing would be compiled; use activation_checkpointing: none or "
            "compile: false"
        )
    return None


def _of_precision(case: Case) -> str | None:
    if case.precision.master != "fp32":
        return f"precision.master = {case.precision.master}: DeepSpeed keeps fp32 master weights"
    if case.precision.compute == "fp16" and case.device == "cpu":
        return "DeepSpeed's CPU accelerator does not support fp16"
    return None


def _of_disk(strategy: Zero, machine: Machine) -> str | None:
    if "nvme" not in strategy.offloads:
        return None
    if strategy.stage != 3:
        return f"stage = {strategy.stage}: DeepSpeed offloads to NVMe only in stage 3, otherwise to memory"
    if not machine.has_libaio:
        return f"offload to NVMe needs libaio; {ops.GET_LIBAIO}"
    return None if strategy.nvme_path else "offload to NVMe needs nvme_path: a folder on the disk"


def _of_groups(strategy: Zero, case: Case, option: str) -> str | None:
    """Why the groups of ranks of *option* are not possible."""
    size, ranks = getattr(strategy, option), case.world_size
    if size == 1:
        return None
    if strategy.stage != 3:
        return f"{option} = {size} needs stage = 3, the only one that shards parameters, not {strategy.stage}"
    if strategy.offloads:
        return f"{option} = {size} is not supported with offload; {_without_offload(strategy)}"
    if ranks % size:
        fitting = [str(each) for each in range(2, ranks + 1) if not ranks % each]
        instead = f"allowed: {', '.join(fitting)}" if fitting else "leave it out"
        return f"{option} = {size} does not divide the world size, {ranks}; {instead}"
    return None


def _of_mics(strategy: Zero, machine: Machine) -> str | None:
    """Why the DeepSpeed that is installed can't train by MiCS."""
    version = machine.packages.get("deepspeed")
    if strategy.mics_shard_size == 1 or version is None:
        return None
    if strategy.hpz_partition_size > 1:
        return "mics_shard_size and hpz_partition_size: DeepSpeed has no engine for both; use one of them"
    if release(version) >= REMOVED_IN:
        return (
            f"mics_shard_size: DeepSpeed {version} does not have MiCS; {LAST} was the last version that had "
            f"it ({REMOVAL}); choose an environment with it, or fsdp: {{sharding: hybrid}} here"
        )
    return None


def _of_mesh(strategy: Zero, case: Case) -> str | None:
    """Why the model can't be split across ranks that process the same samples."""
    over = strategy.over
    if over.devices == 1:
        return None
    if len(strategy.asked) > 1:
        return "mesh: pp and tp can't be combined with DeepSpeed; use pp: {mesh: {tp: 2}}"
    if strategy.offloads:
        return f"mesh: {over.dimension} is not supported with offload; {_without_offload(strategy)}"
    if unfit := meshes.problem(strategy.asked, case.world_size, strategy.of_data):
        return unfit
    own = _of_autotp(strategy, case) if strategy.pipeline is None else _of_pipeline(strategy, case)
    return own or over.problem(case)


def _without_offload(strategy: Zero) -> str:
    """What to set so that nothing is offloaded."""
    options = ("offload_optimizer", "offload_parameters")
    return "use " + " and ".join(f"{name}: none" for name in options if getattr(strategy, name) != "none")


def _of_autotp(strategy: Zero, case: Case) -> str | None:
    """Why DeepSpeed's AutoTP can't split the layers."""
    if strategy.stage == 3:
        return (
            "mesh: tp is AutoTP, which DeepSpeed documents for stages 0 to 2; use stage: 2, or "
            "fsdp: {mesh: {tp: 2}}"
        )
    if strategy.stage == 0 and _is_short(case) and case.optimizer.clip_grad_norm is not None:
        # it takes the norm of gradients, which are not marked as cut, where it should of parameters
        return (
            "mesh: tp in stage 0 in 16 bits: DeepSpeed (0.19.8) would clip by the norm of one rank's "
            "gradients, not of all tensor-parallel ranks'; use stage: 1, or optimizer.clip_grad_norm: null"
        )
    return None


def _of_pipeline(strategy: Zero, case: Case) -> str | None:
    """Why DeepSpeed's PipelineModule can't run as asked."""
    if strategy.stage > 1:
        return (
            f"mesh: pp with stage = {strategy.stage}: DeepSpeed's pipeline accumulates the gradients of "
            "several micro-batches before it reduces them, and refuses stages 2 and 3, which would shard "
            "them in between; use stage: 1, or pp: {mesh: {dp_shard: 2}}"
        )
    if case.precision.compute == "fp16":
        return "mesh: pp is supported only in fp32 and bf16 (fp16 is untested); use precision: bf16"
    if strategy.stage == 0 and _is_short(case):
        return (
            "mesh: pp in stage 0 in 16 bits: DeepSpeed (0.19.8) uses its BF16_Optimizer, which shards the "
            "optimizer state anyway; use stage: 1, which says so"
        )
    if strategy.stage == 0 and case.optimizer.clip_grad_norm is not None:
        # clip_grad_norm_ takes the first stage for the only one whose parameters are not copies
        return (
            "mesh: pp in stage 0: DeepSpeed (0.19.8) would clip by the norm of the first stage's gradients, "
            "not of all stages'; use stage: 1, or optimizer.clip_grad_norm: null"
        )
    if strategy.overlap_comm:
        return (
            "overlap_comm: in a pipeline DeepSpeed reduces gradients after all backward passes; leave it out"
        )
    if strategy.optimizer_kernel != "torch":
        return "mesh: pp is tested only with optimizer_kernel: torch; use that"
    return None


def _is_short(case: Case) -> bool:
    """Whether parameters are shorter than their master weights."""
    return case.precision.compute != case.precision.master


def _of_quantized(strategy: Zero, case: Case) -> str | None:
    """Why the communication of ZeRO++ can't be quantized."""
    asked = [name for name in ("quantized_weights", "quantized_gradients") if getattr(strategy, name)]
    if not asked:
        return None
    if strategy.stage != 3:
        return f"{asked[0]}: ZeRO++ quantizes only in stage 3, not in stage {strategy.stage}"
    if case.device == "cpu":
        return (
            f"{asked[0]}: DeepSpeed's quantizer is a CUDA kernel; on CPUs it raises: This op had not been "
            "implemented on CPU backend."
        )
    return (
        f"{asked[0]} quantizes {asked[0].split('_')[1]} by design, and distbench has never run it, so its "
        "verdicts are untested; leave it out"
    )
