"""Step layout of a case, from its strategy and options."""

from __future__ import annotations

import dataclasses
from typing import Any

from distbench import optimizers
from distbench.core import registry
from distbench.core.case import NATIVE_ENGINE, Case
from distbench.core.dtypes import DTYPE_BYTES
from distbench.data.base import DataSource
from distbench.prediction.kernels import COMPILED, EAGER, Kernels
from distbench.prediction.layout import Float8, Recomputation, StepLayout
from distbench.strategies.base import Strategy
from distbench.strategies.pp.schedules import SCHEDULES
from distbench.strategies.theory.data_parallelism import ZERO_STAGES
from distbench.strategies.zero.theory import reduces_full_gradients
from distbench.workloads.base import workload_of

_RECIPES: dict[str, Float8] = {
    "none": "none",
    "tensorwise": "tensor",
    "rowwise": "row",
    "rowwise_with_gw_hp": "row",
}
_RECOMPUTATION: dict[str, Recomputation] = {"none": "none", "selective": "elementwise", "full": "full"}
_PREDICTED = ("single", "ddp", "fsdp", "zero", "tp", "cp", "pp")
_UPDATED = ("adamw", "adam", "sgd")
"""Optimizers whose update reads and writes each of its arrays once, if its kernel is fused."""
_UNFUSED_UPDATE = 3
"""Passes over these arrays of kernels that compute one operator after another."""


def kernels_of(case: Case) -> Kernels:
    """Kernels of the layers of *case*."""
    return EAGER if case.compile == "none" else COMPILED


def step_layout(case: Case, strategy: Strategy) -> StepLayout | str:
    """Layout of *case* with *strategy*, or the reason why its time can't follow from a data sheet."""
    if reason := _problem(case, strategy):
        return reason
    batch, precision, sizes = case.batch, case.precision, strategy.mesh_sizes(case.world_size)
    layout = StepLayout(
        length=workload_of(case).tokens_per_sample,
        micro_batch=batch.micro_batch_size,
        micro_batches=batch.gradient_accumulation_steps,
        tensor=sizes.get("tp", 1),
        context=sizes.get("cp", 1),
        shards=sizes.get("dp_shard", 1),
        replicas=sizes.get("dp_replicate", 1),
        stages=sizes.get("pp", 1),
        sequence_parallel=getattr(strategy, "sequence_parallel", False),
        gathers_logits=not getattr(strategy, "loss_parallel", True),
        recomputation=_RECOMPUTATION[case.activation_checkpointing],
        dtype=precision.compute,
        tf32=precision.matmul == "high",
        float8=_RECIPES[precision.float8],
        element_bytes=DTYPE_BYTES[precision.compute],
        parameter_bytes=DTYPE_BYTES[precision.compute],
        gradient_bytes=DTYPE_BYTES[precision.reduce],
        update_bytes=_update_bytes(case),
    )
    return dataclasses.replace(layout, **_differences(case, strategy))


def _update_bytes(case: Case) -> float:
    """Bytes that the update of a parameter reads and writes."""
    moments = optimizers.bytes_per_parameter(case.optimizer, DTYPE_BYTES[case.precision.optimizer_state])
    passes = 1 if case.optimizer.kernel == "fused" else _UNFUSED_UPDATE
    # read: parameter, gradient, moments; written: parameter, moments
    return passes * (3 * DTYPE_BYTES[case.precision.master] + 2 * moments)


def _problem(case: Case, strategy: Strategy) -> str | None:
    """Reason why a part of the step of *case* has no rate in a data sheet."""
    if case.strategy.name not in _PREDICTED:
        return f"steps of {case.strategy.name} are not predicted; those of {', '.join(_PREDICTED)} are"
    if strategy.intended_difference:
        return f"{strategy.label} compresses or leaves out communication, whose cost needs a probe"
    if getattr(strategy, "hpz_partition_size", 1) > 1:
        return "hpz_partition_size: gathers inside a secondary group are not predicted"
    if getattr(strategy, "quantized_weights", False) or getattr(strategy, "quantized_gradients", False):
        return "the cost of quantized communication needs a probe"
    if strategy.offload_folder:
        return "its offload to disk needs the disk's bandwidth, which GPU data sheets do not give"
    if strategy.offloads:
        return "it offloads states to CPU memory: the speed of the CPU and of its memory needs a probe"
    return _setting_problem(case)


def _setting_problem(case: Case) -> str | None:
    """Reason why a setting of *case* besides its strategy leaves its time unknown."""
    if case.engine != NATIVE_ENGINE:
        return f"engine {case.engine.name}: data sheets do not give the overhead of a framework"
    if case.optimizer.name not in _UPDATED:
        return (
            f"the time of an update of optimizer.name = {case.optimizer.name} is unknown; "
            f"those of {', '.join(_UPDATED)} are known"
        )
    if case.precision.float8_emulated:
        return "emulated float8 is not timed"
    return row_length_problem(case) or None


def row_length_problem(case: Case) -> str:
    """Reason why the lengths of the rows of *case* are unknown; empty: all are alike."""
    source: DataSource = registry.create_plugin("data", case.data)
    if source.packs_rows or source.length_multiple is not None:
        return "row lengths differ and are unknown until the data is read"
    return ""


def _differences(case: Case, strategy: Any) -> dict[str, Any]:
    """Fields of the layout that follow from options of *strategy*, not from its mesh."""
    match case.strategy.name:
        case "fsdp":
            return {
                "gather_frequency": "micro_batch" if strategy.sharding == "grad_op" else "pass",
                "reduce_frequency": "micro_batch" if strategy.reduce_each_micro_batch else "step",
            }
        case "zero":
            return _zero(case, strategy) | (_parts(case, strategy) if strategy.pipeline else {})
        case "cp":
            sharding = (
                {"gather_frequency": "pass", "reduce_frequency": "micro_batch"} if strategy.sharded else {}
            )
            exchange = "repeated_ring" if strategy.implementation == "ring" else "ulysses"
            return {"exchange": exchange, **sharding}
        case "pp":
            return _pipeline(case, strategy) | _parts(case, strategy)
    if getattr(strategy, "sharded_optimizer", False):
        return {"gather_frequency": "step", "overlaps_gathers": False, "reduce_op": "all_reduce"} | {
            "shards": case.world_size,
            "replicas": 1,
            "parameter_bytes": DTYPE_BYTES[case.precision.master],
        }
    return {}


def _zero(case: Case, strategy: Any) -> dict[str, Any]:
    level, overlaps = ZERO_STAGES[strategy.stage], bool(strategy.overlap_comm)
    return {
        "gather_frequency": level.gather_frequency,
        "reduce_frequency": level.reduce_frequency,
        "reduce_op": "all_reduce" if reduces_full_gradients(strategy, case) else level.reduce_op,
        "overlaps_gathers": overlaps and strategy.stage == 3,
        "overlaps_reductions": overlaps and strategy.stage > 0,
        # AutoTP leaves embedding and head whole, and sums for query, key, value, gate and up separately
        "vocab_parallel": False,
        "backward_all_reduces": 5,
    }


def _pipeline(case: Case, strategy: Any) -> dict[str, Any]:
    differences = {
        "chunks": strategy.stages_on_rank,
        "splits_backward": SCHEDULES[strategy.schedule].splits_backward,
    }
    if strategy.mesh_sizes(case.world_size).get("dp_shard", 1) > 1:
        gathers = "pass" if strategy.reshard_after_forward else "micro_batch"
        return differences | {"gather_frequency": gathers, "reduce_frequency": "micro_batch"}
    return differences


def _parts(case: Case, strategy: Any) -> dict[str, Any]:
    """Micro-batches of a pipeline: those of the case, each in equal parts."""
    batch, parts = case.batch, strategy.micro_batches
    return {
        "micro_batch": batch.micro_batch_size // parts,
        "micro_batches": batch.gradient_accumulation_steps * parts,
        "parts": parts,
        # each micro-batch of the case is a schedule
        "schedules": batch.gradient_accumulation_steps,
    }
