"""Cases that DeepSpeed can't train as requested, detected before launch. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distbench.core.case import Case
from distbench.core.dtypes import DTYPE_BYTES
from distbench.core.errors import as_yaml
from distbench.core.machine import Machine, parse_release
from distbench.optimizers import TensorLayout
from distbench.strategies._deepspeed import ops
from distbench.strategies._deepspeed.releases import (
    FIRST_WITHOUT_ONEBIT,
    LAST_WITH_ONEBIT,
    REMOVAL_ISSUE,
)
from distbench.strategies.requirements import optimizer_problem, unused_option_problem
from distbench.strategies.zero import disk, theory
from distbench.strategies.zero.pipeline import DEFAULT_MICRO_BATCHES

if TYPE_CHECKING:
    from distbench.strategies.zero import Zero


def zero_problem(strategy: Zero, case: Case, machine: Machine) -> str | None:
    """Reason why *case* can't be trained with *strategy* on *machine* (build tools aside); None if it can."""
    cut: TensorLayout = (
        "flat" if strategy.stage else "rows" if strategy.tensor_parallelism.ranks > 1 else "whole"
    )
    return (
        _unused_option_problem(strategy, case)
        or _options_problem(strategy, case)
        or _precision_problem(case)
        or _nvme_problem(strategy, machine)
        or _group_problem(strategy, case, "hpz_partition_size")
        or _group_problem(strategy, case, "mics_shard_size")
        or _mics_problem(strategy, machine)
        or _quantization_problem(strategy, case)
        or _mesh_problem(strategy, case)
        or optimizer_problem(case, cut, f"ZeRO {strategy.stage}")
    )


def _unused_option_problem(strategy: Zero, case: Case) -> str | None:
    stage_3 = strategy.stage == 3, "stage: 3"
    usual = type(strategy)(stage=strategy.stage)
    # BF16_Optimizer and a pipeline, which reduces after all passes, have neither
    is_own = not theory.reduces_full_gradients(strategy, case) and strategy.pipeline is None
    partitions = strategy.stage in (1, 2) and is_own
    copies = strategy.stage == 3 or (partitions and strategy.offload_optimizer == "none")
    own = "stage: 2, or stage: 1 without mesh: {pp: N} and without fp32 gradients beside precision: bf16"
    return unused_option_problem(
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
            "aio": ("nvme" in strategy.offloads, "offload to nvme"),
            "pin_memory": (bool(strategy.offloads), "offload_optimizer or offload_parameters"),
            "sub_group_size": stage_3,
            "round_robin_gradients": (partitions, own),
            "contiguous_gradients": (copies, f"stage: 3, or without offload_optimizer {own}"),
            "prescale_gradients": (strategy.stage == 0, "stage: 0"),
            "gradient_predivide_factor": (
                strategy.stage == 0 and not strategy.prescale_gradients,
                "stage: 0 and prescale_gradients: false",
            ),
        },
    )


def _options_problem(strategy: Zero, case: Case) -> str | None:
    """Reason why the options can't be combined."""
    if strategy.offload_optimizer != "none" and strategy.stage == 0:
        return "stage = 0: DeepSpeed can offload the optimizer only in stages 1 to 3"
    if strategy.offload_parameters != "none" and strategy.stage != 3:
        return f"stage = {strategy.stage}: DeepSpeed can offload parameters only in stage 3"
    if strategy.overlap_comm and strategy.stage == 0:
        return "overlap_comm: in stage 0 DeepSpeed always reduces gradients after the backward pass"
    if strategy.grad_accum_dtype == "bf16" and (strategy.stage == 0 or case.precision.compute != "bf16"):
        given = f"stage = {strategy.stage}, precision.compute = {case.precision.compute}"
        return f"grad_accum_dtype = bf16 needs stage 1, 2 or 3 and precision: bf16, not {given}"
    if strategy.pipeline is None and strategy.micro_batches != DEFAULT_MICRO_BATCHES:
        return (
            f"micro_batches = {strategy.micro_batches}: only a pipeline splits micro-batches; set mesh: "
            "{pp: 2}, or remove micro_batches"
        )
    if strategy.optimizer_kernel == "deepspeed" and case.optimizer.name != "adamw":
        return (
            f"optimizer.name = {case.optimizer.name}: optimizer_kernel: deepspeed supports only adamw; use "
            "optimizer_kernel: torch"
        )
    if strategy.stage == 3 and "none" not in (case.compile, case.activation_checkpointing):
        # its hooks use torch.compiler.disable, which torch can't trace inside a checkpoint (gb0098)
        return (
            "stage = 3 gathers parameters inside each layer, and torch can't compile such a layer with "
            "activation checkpointing, so compile would have no effect; use activation_checkpointing: "
            "none or compile: false"
        )
    return None


def _precision_problem(case: Case) -> str | None:
    if case.precision.master != "fp32":
        return f"precision.master = {case.precision.master}: DeepSpeed keeps fp32 master weights"
    if case.precision.compute == "fp16" and case.device == "cpu":
        return "DeepSpeed's CPU accelerator does not support fp16"
    return None


def _nvme_problem(strategy: Zero, machine: Machine) -> str | None:
    if "nvme" not in strategy.offloads:
        return None
    if strategy.stage != 3:
        return f"stage = {strategy.stage}: DeepSpeed offloads to NVMe only in stage 3, otherwise to memory"
    if not machine.has_libaio:
        return f"offload to NVMe needs libaio; {ops.INSTALL_LIBAIO}"
    for key, value in strategy.aio.items():
        is_switch = key in ("single_submit", "overlap_events")
        if isinstance(value, bool) != is_switch:
            wanted = "true or false" if is_switch else "a whole number"
            return f"aio.{key} = {as_yaml(value)}: expected {wanted}"
    least = disk.MIN_SWAP_BYTES // DTYPE_BYTES["fp32"]
    if strategy.offload_optimizer == "nvme" and (strategy.sub_group_size or least) < least:
        return (
            f"sub_group_size = {strategy.sub_group_size}: DeepSpeed keeps parts below 1 MiB in memory; with "
            f"offload_optimizer: nvme use at least {least}"
        )
    return None if strategy.nvme_path else "offload to NVMe needs a folder on the disk; set nvme_path"


def _group_problem(strategy: Zero, case: Case, option: str) -> str | None:
    """Reason why the groups of ranks of *option* are impossible."""
    size, ranks = getattr(strategy, option), case.world_size
    if size == 1:
        return None
    if strategy.stage != 3:
        return f"{option} = {size} needs stage = 3, the only one that shards parameters, not {strategy.stage}"
    if strategy.offloads:
        return f"{option} = {size} is not supported with offload; {_disable_offload_text(strategy)}"
    if ranks % size:
        fitting = [str(each) for each in range(2, ranks + 1) if not ranks % each]
        instead = f"allowed: {', '.join(fitting)}" if fitting else "leave it out"
        return f"{option} = {size} does not divide the world size, {ranks}; {instead}"
    return None


def _mics_problem(strategy: Zero, machine: Machine) -> str | None:
    """Reason why the installed DeepSpeed can't train with MiCS."""
    version = machine.packages.get("deepspeed")
    if strategy.mics_shard_size == 1 or version is None:
        return None
    if strategy.hpz_partition_size > 1:
        return "mics_shard_size and hpz_partition_size: DeepSpeed has no engine for both; use one of them"
    if parse_release(version) >= FIRST_WITHOUT_ONEBIT:
        return (
            f"mics_shard_size: DeepSpeed {version} does not have MiCS; {LAST_WITH_ONEBIT} was the last "
            f"version that had it ({REMOVAL_ISSUE}); choose an environment with that version, or fsdp: "
            "{sharding: hybrid} here"
        )
    return None


def _mesh_problem(strategy: Zero, case: Case) -> str | None:
    """Reason why the model can't be split across ranks that process the same samples."""
    over = strategy.model_parallelism
    if over.ranks == 1:
        return None
    if len(strategy.requested_mesh) > 1:
        return "mesh: pp and tp can't be combined with DeepSpeed; use pp: {mesh: {tp: 2}}"
    if strategy.offloads:
        return f"mesh: {over.dimension} is not supported with offload; {_disable_offload_text(strategy)}"
    if unfit := strategy.mesh_size_problem(case.world_size):
        return unfit
    own = _autotp_problem(strategy, case) if strategy.pipeline is None else _pipeline_problem(strategy, case)
    return own or over.problem(case)


def _disable_offload_text(strategy: Zero) -> str:
    """Advice on the options that disable offload."""
    options = ("offload_optimizer", "offload_parameters")
    return "use " + " and ".join(f"{name}: none" for name in options if getattr(strategy, name) != "none")


def _autotp_problem(strategy: Zero, case: Case) -> str | None:
    """Reason why DeepSpeed's AutoTP can't split the layers."""
    if strategy.stage == 3:
        return (
            "mesh: tp is AutoTP, which DeepSpeed documents for stages 0 to 2; use stage: 2, or "
            "fsdp: {mesh: {tp: 2}}"
        )
    if strategy.stage == 0 and _is_mixed_precision(case) and case.optimizer.clip_grad_norm is not None:
        # it computes the norm from gradients, which are not marked as split, where it should use parameters
        return (
            "mesh: tp in stage 0 in 16 bits: DeepSpeed (0.19.8) would clip by the norm of one rank's "
            "gradients, not of all tensor-parallel ranks'; use stage: 1, or optimizer.clip_grad_norm: null"
        )
    return None


def _pipeline_problem(strategy: Zero, case: Case) -> str | None:
    """Reason why DeepSpeed's PipelineModule can't run as requested."""
    if strategy.stage > 1:
        return (
            f"mesh: pp with stage = {strategy.stage}: DeepSpeed's pipeline accumulates the gradients of "
            "several micro-batches before it reduces them, and refuses stages 2 and 3, which would shard "
            "them in between; use stage: 1, or pp: {mesh: {dp_shard: 2}}"
        )
    if case.precision.compute == "fp16":
        return "mesh: pp is supported only in fp32 and bf16 (fp16 is untested); use precision: bf16"
    if strategy.stage == 0 and _is_mixed_precision(case):
        return (
            "mesh: pp in stage 0 in 16 bits: DeepSpeed (0.19.8) uses its BF16_Optimizer, which shards "
            "the optimizer state anyway, so this would be stage 1; use stage: 1"
        )
    if strategy.stage == 0 and case.optimizer.clip_grad_norm is not None:
        # clip_grad_norm_ treats only the first stage's parameters as not replicated
        return (
            "mesh: pp in stage 0: DeepSpeed (0.19.8) would clip by the norm of the first stage's gradients, "
            "not of all stages'; use stage: 1, or optimizer.clip_grad_norm: null"
        )
    if strategy.overlap_comm:
        return "overlap_comm: in a pipeline DeepSpeed reduces gradients after all backward passes; remove it"
    if strategy.optimizer_kernel != "torch":
        return "mesh: pp is tested only with optimizer_kernel: torch; use that"
    return None


def _is_mixed_precision(case: Case) -> bool:
    """True if parameters are shorter than their master weights."""
    return case.precision.compute != case.precision.master


def _quantization_problem(strategy: Zero, case: Case) -> str | None:
    """Reason why the communication of ZeRO++ can't be quantized."""
    asked = [name for name in ("quantized_weights", "quantized_gradients") if getattr(strategy, name)]
    if not asked:
        return None
    if strategy.stage != 3:
        return f"{asked[0]}: ZeRO++ quantizes only in stage 3, not in stage {strategy.stage}"
    if case.device == "cpu":
        return (
            f"{asked[0]} needs CUDA: DeepSpeed's quantizer has no CPU kernel (This op had not been "
            "implemented on CPU backend.)"
        )
    return (
        f"{asked[0]} is not supported: it quantizes {asked[0].split('_')[1]} by design, and distbench's "
        "checks have not been tested with it; remove it"
    )
