"""Traffic and model states of a pipeline, alone and inside a mesh. Imports no torch."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from distbench.core.case import Case
from distbench.core.dtypes import DTYPE_BYTES
from distbench.strategies.description import CallCount, ExpectedCollective
from distbench.strategies.pp.schedules import MAX_UNSHARDED_STAGES
from distbench.strategies.theory.data_parallelism import FULLY_SHARDED, REPLICATED
from distbench.workloads.base import workload_of

if TYPE_CHECKING:
    from distbench.strategies.pp import PipelineParallel
    from distbench.workloads.stages import PipelineStages


def pipeline_traffic(
    strategy: PipelineParallel, case: Case, model: PipelineStages
) -> list[ExpectedCollective]:
    """Collectives of a rank in a step over each dimension of the mesh: the mean over ranks.

    It does not depend on the split of the layers into stages.
    """
    every = [
        part(strategy, case, model)
        for part in (_between_stages, _data_parallel_traffic, _tensor_parallel_traffic)
    ]
    return [one for part in every for one in part if one.bytes]


def _between_stages(
    strategy: PipelineParallel, case: Case, model: PipelineStages
) -> list[ExpectedCollective]:
    # across each boundary between two ranks the activations of every sample are sent forward, and gradients
    # of the same size back (Narayanan et al. 2021, section 3.2); gradients of tied weights are summed over
    # both ends
    mesh = strategy.device_mesh(case.world_size)
    ranks, element = mesh.size("pp"), DTYPE_BYTES[case.precision.compute]
    owners = [
        strategy.schedule_rules.rank_of_stage(stage, ranks)
        for stage in range(ranks * strategy.stages_on_rank)
    ]
    borders = sum(here != there for here, there in itertools.pairwise(owners))
    samples = case.batch.global_batch_size // mesh.data_ranks
    passed = model.activation_size / (mesh.size("tp") if strategy.sequence_parallel else 1)
    crossing = 2 * borders * samples * passed * element / ranks
    calls = 2 * borders * _forward_passes(strategy, case) / ranks
    stride = mesh.size("dp_shard", "tp")
    tied = (
        model.tied_parameters * DTYPE_BYTES[case.precision.master] / stride if owners[0] != owners[-1] else 0
    )
    return [
        ExpectedCollective("send", crossing, "pp", calls),
        ExpectedCollective("recv", crossing, "pp", calls),
        ExpectedCollective("all_reduce", 2 * tied / ranks, "pp", 2 * len(model.tied_names) / ranks),
    ]


def _data_parallel_traffic(
    strategy: PipelineParallel, case: Case, model: PipelineStages
) -> list[ExpectedCollective]:
    """Collectives over data-parallel ranks, which have the same stages."""
    mesh = strategy.device_mesh(case.world_size)
    shards, copies, ranks = (mesh.size(name) for name in ("dp_shard", "dp_replicate", "pp"))
    of_layers, layers = sum(model.layer_parameters), len(model.layer_parameters)
    every = (
        _parameters_per_rank(
            strategy, case, model.embedding_parameters + of_layers + model.head_parameters, layers
        )
        / ranks
    )
    if shards == 1:
        # in buckets, like DDP without a pipeline
        return REPLICATED.traffic(case, every, replicas=copies)
    # a layer that is resharded after each forward pass is gathered before each pass that follows one: in
    # every order of m forward and m backward passes, those are the first and the m that follow a forward pass
    again = strategy.micro_batches if strategy.reshard_after_forward else 0
    micro, again_units = case.batch.gradient_accumulation_steps, again * layers / ranks
    units = (layers + bool(model.embedding_parameters) + bool(model.head_parameters)) / ranks
    gathered = every + again * _parameters_per_rank(strategy, case, of_layers, layers) / ranks
    stays_unsharded = strategy.stages_on_rank <= MAX_UNSHARDED_STAGES
    return FULLY_SHARDED.traffic(
        case,
        every,
        shards=shards,
        replicas=copies,
        gathered=micro * gathered,
        gathers=CallCount(micro * (units + again_units) if stays_unsharded else None),
        reductions=CallCount(micro * units),
    )


def _tensor_parallel_traffic(
    strategy: PipelineParallel, case: Case, _model: PipelineStages
) -> list[ExpectedCollective]:
    """Collectives over ranks that share samples and have parts of the same layers."""
    mesh, micro = strategy.device_mesh(case.world_size), case.batch.gradient_accumulation_steps
    sharded, precision = mesh.size("dp_shard") > 1, case.precision
    # FSDP sums tensor parallelism's partial gradients before it scatters them
    norms = micro * DTYPE_BYTES[precision.compute] if sharded else DTYPE_BYTES[precision.master]
    samples, ranks = case.batch.global_batch_size // mesh.data_ranks, mesh.size("pp")
    whole = strategy.tensor_parallelism.traffic(
        case, samples, norms, reductions=micro if sharded else 1, passes=strategy.micro_batches
    )
    return [
        replace(
            one,
            bytes=one.bytes / ranks,
            calls=None if one.calls is None else one.calls / ranks,
            synchronizations=None,
        )
        for one in whole
    ]


def _forward_passes(strategy: PipelineParallel, case: Case) -> int:
    """Number of forward passes of a stage in a step."""
    return strategy.micro_batches * case.batch.gradient_accumulation_steps


def pipeline_model_states(
    strategy: PipelineParallel, case: Case, model: PipelineStages, stages: Sequence[range]
) -> dict[str, float]:
    """Model-state bytes of the rank with the most, by kind; *stages* has the layers of each stage."""
    mesh, held = strategy.device_mesh(case.world_size), defaultdict[int, list[float]](list)
    for stage, layers in enumerate(stages):
        own = _parameters_per_rank(strategy, case, model.parameters(layers), len(layers))
        held[strategy.schedule_rules.rank_of_stage(stage, mesh.size("pp"))].append(own)
    largest, shards = max(held.values(), key=sum), mesh.size("dp_shard")
    table = FULLY_SHARDED.model_states(case, round(sum(largest)), shards)
    if shards > 1:
        table["gradients"] = max(
            _unsharded_gradient_bytes(strategy, case, own, shards) for own in held.values()
        )
    return table


def _unsharded_gradient_bytes(
    strategy: PipelineParallel, case: Case, stages: Sequence[float], shards: int
) -> float:
    """Gradient bytes of *stages* (parameters) of a rank: unsharded until the last pass of a stage."""
    whole, reduced = DTYPE_BYTES[case.precision.reduce], DTYPE_BYTES[case.precision.master] / shards
    # of the previous micro-batch of the suite
    is_again = case.batch.gradient_accumulation_steps > 1
    if not strategy.backward_finishes_stage_by_stage(case.world_size):
        return sum(stages) * (whole + is_again * reduced)
    # the last stage is reduced before the one in front of it has gradients
    return max(
        own * whole + sum(stages if is_again else stages[place + 1 :]) * reduced
        for place, own in enumerate(stages)
    )


def _parameters_per_rank(strategy: PipelineParallel, case: Case, parameters: int, layers: int) -> float:
    """Parameters per rank out of *parameters* in *layers*: norms in full, a share of everything else."""
    devices = strategy.device_mesh(case.world_size).size("tp")
    splits = workload_of(case).tensor_splits()
    if devices == 1 or splits is None:
        return parameters
    # the norm after the last layer is distributed over all layers
    whole = splits.replicated_parameters * layers / splits.layers
    return whole + (parameters - whole) / devices
