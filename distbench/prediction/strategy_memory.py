"""Live bytes of the step of each strategy: how it splits, copies and gathers what the operations need."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from distbench.core.case import Case
from distbench.core.dtypes import DTYPE_BYTES
from distbench.prediction.lifetimes import ParameterBytes
from distbench.prediction.live_bytes import LiveBytes, ModelMemory, replicated_memory
from distbench.prediction.pipeline_memory import Stage, stage_memory
from distbench.prediction.sharded_memory import ShardLayout, sharded_memory
from distbench.prediction.zero_memory import ZeroBuffers, zero_memory
from distbench.strategies.base import Strategy
from distbench.strategies.cp import ContextParallel
from distbench.strategies.ddp import DistributedDataParallel
from distbench.strategies.fsdp import FullyShardedDataParallel
from distbench.strategies.pp import PipelineParallel
from distbench.strategies.pp.schedules import schedule_in_flight
from distbench.strategies.single import Single
from distbench.strategies.theory.data_parallelism import FULLY_SHARDED
from distbench.strategies.tp import TensorParallel
from distbench.strategies.zero import Zero
from distbench.strategies.zero.config import ModelSizes, sizes_for_model
from distbench.strategies.zero.theory import reduces_full_gradients
from distbench.workloads.base import Workload
from distbench.workloads.operations import ModelOperations, RowSplit, parameters_of

_NO_STATES = "no theory of its model states"


@dataclass(frozen=True)
class ModeledCase:
    """Case with its workload, and how its kernels differ from those of a CPU."""

    case: Case
    workload: Workload
    fuses_norms: bool = False

    def model(self, case: Case | None = None, **split: Any) -> ModelOperations:
        """Operations of a micro-batch of *case*, by default its own."""
        case = case or self.case
        element = DTYPE_BYTES[case.precision.compute]
        rows = RowSplit(case.batch.micro_batch_size, element, fuses_norms=self.fuses_norms, **split)
        model = self.workload.operations(rows)
        assert model is not None, "workloads without operations are refused before"
        return model

    def states(self, strategy: Strategy) -> dict[str, float] | None:
        """Model states of *strategy*; None: there is no theory of them."""
        parameters = self.workload.parameters()
        return None if parameters is None else strategy.model_states(self.case, parameters)

    def largest(self, parts: float = 1) -> float:
        """Bytes of the largest tensor that the optimizer updates, of which a rank has one of *parts*."""
        shapes = self.workload.tensor_shapes() or ()
        elements = max(map(math.prod, shapes), default=0)
        return elements * DTYPE_BYTES[self.case.precision.master] / parts


def strategy_memory(strategy: Strategy, modeled: ModeledCase) -> list[LiveBytes] | str:
    """Live bytes of a step of *strategy* at its possible peaks, or the reason why no formula has them."""
    for kind, rule in _RULES.items():
        if isinstance(strategy, kind):
            return rule(strategy, modeled)
    return f"no formula for the memory of {modeled.case.strategy.name}"


def _replicated(strategy: Any, modeled: ModeledCase, **split: Any) -> list[LiveBytes] | str:
    case = modeled.case
    states = modeled.states(strategy)
    if states is None:
        return _NO_STATES
    precision = case.precision
    compute, master = DTYPE_BYTES[precision.compute], DTYPE_BYTES[precision.master]
    is_cast = precision.compute != precision.master
    frees = bool(getattr(strategy, "optimizer_in_backward", False))
    if frees:
        states = {**states, "gradients": 0.0}
    accumulates = case.batch.gradient_accumulation_steps > 1
    model = modeled.model(**split)
    if accumulates and not model.tied_parameters and model.partial_parameters:
        extra_gradient_bytes = (model.partial_parameters - parameters_of(model.first)) * master
        states = {**states, "gradients": states["gradients"] + extra_gradient_bytes}
    cast_copy, final_gradient = (compute, master) if is_cast else (0, 0)
    of_layers = ParameterBytes(cast_copy, compute, final_gradient, accumulates or frees)
    of_ends = ParameterBytes(
        cast_copy,
        compute,
        0,
        accumulates=(accumulates or frees) and not is_cast and not model.tied_parameters,
    )
    memory = ModelMemory.of(case, model, states, of_layers, of_ends)
    endings = ParameterBytes(cast_copy, compute, final_gradient, accumulates or frees)
    live_bytes = [*replicated_memory(memory, of_ends, endings)]
    return [*live_bytes, memory.update(case, modeled.largest(split.get("tensor", 1)))]


def _single(strategy: Single, modeled: ModeledCase) -> list[LiveBytes] | str:
    return _replicated(strategy, modeled)


def _ddp(strategy: DistributedDataParallel, modeled: ModeledCase) -> list[LiveBytes] | str:
    if isinstance(reason := strategy.traced_step(modeled.case), str):
        return reason
    live_bytes = _replicated(strategy, modeled)
    return live_bytes if isinstance(live_bytes, str) else _with_buckets(live_bytes, strategy, modeled)


def _with_buckets(
    live_bytes: Sequence[LiveBytes], strategy: Strategy, modeled: ModeledCase
) -> list[LiveBytes]:
    """*live_bytes* with a copy of all gradients in the buckets that are reduced."""
    states = modeled.states(strategy) or {}
    return [{**live, "buckets": states["gradients"]} for live in live_bytes]


def _tensor(strategy: TensorParallel, modeled: ModeledCase) -> list[LiveBytes] | str:
    return _replicated(
        strategy,
        modeled,
        tensor=modeled.case.world_size,
        sequence_parallel=strategy.sequence_parallel,
        loss_parallel=strategy.loss_parallel,
    )


def _context(strategy: ContextParallel, modeled: ModeledCase) -> list[LiveBytes] | str:
    if strategy.implementation != "ulysses":
        return f"implementation = {strategy.implementation}: peak memory is predicted for ulysses only"
    mesh = strategy.mesh_sizes(modeled.case.world_size)
    if strategy.sharded:
        return _sharded_by(
            strategy, modeled, shards=modeled.case.world_size, reshards=True, context=mesh["cp"]
        )
    live_bytes = _replicated(strategy, modeled, context=mesh["cp"])
    return live_bytes if isinstance(live_bytes, str) else _with_buckets(live_bytes, strategy, modeled)


def _sharded(strategy: FullyShardedDataParallel, modeled: ModeledCase) -> list[LiveBytes] | str:
    changed = {
        "version": strategy.version == 1,
        "cpu_offload": strategy.cpu_offload,
        "reshard_root": strategy.reshard_root,
        "layers_per_unit": strategy.layers_per_unit > 1,
        "forward_prefetch": strategy.forward_prefetch > 0,
        "backward_prefetch": strategy.backward_prefetch > 0,
        "reduce_each_micro_batch": not strategy.reduce_each_micro_batch,
    }
    if names := [name for name, is_changed in changed.items() if is_changed]:
        return f"{', '.join(names)}: peak memory is predicted for the defaults of fsdp only"
    over = strategy.tensor_parallelism
    return _sharded_by(
        strategy,
        modeled,
        shards=strategy.mesh_sizes(modeled.case.world_size)["dp_shard"],
        reshards=strategy.sharding != "grad_op",
        tensor=over.ranks,
        sequence_parallel=over.sequence_parallel,
        loss_parallel=over.loss_parallel,
    )


def _sharded_by(
    strategy: Any, modeled: ModeledCase, *, shards: int, reshards: bool, **split: Any
) -> list[LiveBytes] | str:
    case = modeled.case
    states = modeled.states(strategy)
    if states is None:
        return _NO_STATES
    precision, frees = case.precision, bool(getattr(strategy, "optimizer_in_backward", False))
    compute, accumulates = DTYPE_BYTES[precision.compute], case.batch.gradient_accumulation_steps > 1
    layout = ShardLayout(
        shards,
        compute,
        DTYPE_BYTES[precision.reduce],
        DTYPE_BYTES[precision.master],
        reshards,
        copies_in_collectives=case.device == "cpu",
        casts=precision.compute != precision.master,
        keeps_gradients=not frees and not accumulates,
    )
    model, weights = modeled.model(**split), ParameterBytes(computed_gradient=compute)
    padding_ratio = layout.padding_ratio(model)
    states = {kind: size * padding_ratio for kind, size in states.items()}
    if frees:
        states["gradients"] = 0.0
    memory = ModelMemory.of(case, model, states, weights, weights)
    largest = modeled.largest(shards * split.get("tensor", 1))
    return [*sharded_memory(memory, layout), memory.update(case, largest)]


def _zero(strategy: Zero, modeled: ModeledCase) -> list[LiveBytes] | str:
    case = modeled.case
    plain = Zero(
        stage=strategy.stage,
        reduce_bucket_size=strategy.reduce_bucket_size,
        allgather_bucket_size=strategy.allgather_bucket_size,
        max_live_parameters=strategy.max_live_parameters,
        grad_accum_dtype=strategy.grad_accum_dtype,
        overlap_comm=strategy.overlap_comm,
    )
    if strategy != plain or strategy.stage == 0:
        return "peak memory is predicted for ZeRO stages 1 to 3 without offload or other mesh dimensions"
    states, shapes = modeled.states(strategy), modeled.workload.tensor_shapes()
    if states is None or shapes is None:
        return _NO_STATES
    precision, ranks = case.precision, case.world_size
    compute, reduce = DTYPE_BYTES[precision.compute], DTYPE_BYTES[precision.reduce]
    model = modeled.model()
    layer, total = parameters_of(model.layer), modeled.workload.parameters() or 0
    sizes = sizes_for_model(strategy, ModelSizes(total, layer, max(map(math.prod, shapes))))
    accumulates = case.batch.gradient_accumulation_steps > 1
    is_whole, is_cast = reduces_full_gradients(strategy, case), precision.compute != precision.master
    weights = ParameterBytes(
        computed_gradient=compute, accumulates=not is_whole and (accumulates or not model.tied_parameters)
    )
    of_layers = ParameterBytes(computed_gradient=compute, accumulates=not is_whole or accumulates)
    memory = ModelMemory.of(case, model, states, of_layers, weights)
    memory = replace(memory, accumulates=accumulates or strategy.stage == 3)
    gradient_element_bytes = DTYPE_BYTES[strategy.grad_accum_dtype] if is_cast else compute
    if is_whole and not accumulates:
        # the sums are there all the time, the gradients that are added to them only in the backward pass
        raw = total * compute
        memory = replace(memory, states={**states, "gradients": states["gradients"] - raw}, accumulates=True)
    bucket = min(sizes["reduce_bucket_size"], total)
    if strategy.stage == 3:
        # rearranged by rank, and copied by gloo
        copied = reduce * (1 + (case.device == "cpu"))
    else:
        copied = compute + reduce * (precision.reduce != precision.compute)
    # without a conversion stage 2 collects the shard of each micro-batch before it adds it
    has_shard = not memory.accumulates or (strategy.stage == 2 and not is_cast)
    buffers = ZeroBuffers(
        # stage 3 converts gradients as they come, the others the whole bucket
        bucket=0.0 if is_whole else bucket * (reduce if strategy.stage == 3 else compute),
        is_permanent=strategy.stage == 3 or (strategy.stage == 1 and accumulates),
        reduction=0.0 if is_whole else bucket * copied,
        live=min(sizes["max_live_parameters"], total) * compute if strategy.stage == 3 else 0.0,
        shard=total / ranks * gradient_element_bytes * has_shard,
        update=total / ranks * (gradient_element_bytes + DTYPE_BYTES[precision.master] * is_cast),
    )
    return [*zero_memory(memory, weights, buffers)]


def _pipeline(strategy: PipelineParallel, modeled: ModeledCase) -> list[LiveBytes] | str:
    case = modeled.case
    mesh, model = strategy.mesh_sizes(case.world_size), modeled.workload.pipeline_stages()
    if strategy.schedule not in ("GPipe", "1F1B") or strategy.split == "time":
        schedule_text = f"schedule = {strategy.schedule}, split = {strategy.split}"
        return (
            f"{schedule_text}: peak memory is predicted for GPipe and 1F1B split by count or parameters only"
        )
    if model is None or any(mesh.get(name, 1) > 1 for name in ("dp_replicate", "dp_shard", "tp")):
        return "mesh: peak memory is predicted for a pipeline without other dimensions only"
    precision, parts, ranks = case.precision, strategy.micro_batches, mesh["pp"]
    compute, master = DTYPE_BYTES[precision.compute], DTYPE_BYTES[precision.master]
    cast_copy, final_gradient = (compute, master) if precision.compute != precision.master else (0, 0)
    weights = ParameterBytes(cast_copy, compute, final_gradient)
    batch = replace(case.batch, micro_batch_size=case.batch.micro_batch_size // parts)
    operations = modeled.model(replace(case, batch=batch))
    live_bytes: list[LiveBytes] = []
    shared, largest = ModelMemory.of(case, operations, {}, weights, weights), modeled.largest()
    for number, layers in enumerate(strategy.split_layers(model, ranks)):
        states = FULLY_SHARDED.model_states(case, model.parameters(layers))
        memory = replace(shared, states=states)
        in_flight = schedule_in_flight(strategy.schedule, number, ranks, parts) or parts
        stage = Stage(len(layers), number == 0, number == ranks - 1, parts, in_flight)
        live_bytes += stage_memory(memory, stage, weights)
        live_bytes.append(memory.update(case, largest))
    return live_bytes


_Rule = Callable[[Any, ModeledCase], "list[LiveBytes] | str"]
_RULES: Mapping[type[Strategy], _Rule] = {
    Single: _single,
    DistributedDataParallel: _ddp,
    FullyShardedDataParallel: _sharded,
    TensorParallel: _tensor,
    ContextParallel: _context,
    Zero: _zero,
    PipelineParallel: _pipeline,
}
"""Class of a strategy -> function that returns the live bytes of its step, or the reason why not."""
