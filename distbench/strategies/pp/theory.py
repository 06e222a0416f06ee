"""What a pipeline moves and keeps by theory, alone and inside a mesh. Without torch."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from distbench.core.case import BYTES, Case
from distbench.strategies._model_states import zero_table
from distbench.strategies._tensor_parallel import splits_of
from distbench.strategies.description import ExpectedCollective
from distbench.strategies.pp.schedules import ACTIVE

if TYPE_CHECKING:
    from distbench.strategies.pp import PipelineParallel
    from distbench.workloads.stages import Stages


def moved(strategy: PipelineParallel, case: Case, model: Stages) -> list[ExpectedCollective]:
    """Collectives of a rank in a step over each dimension of the mesh: the mean over ranks.

    It is the same however the layers are cut into stages.
    """
    every = [part(strategy, case, model) for part in (_between_stages, _of_data, _inside_layers)]
    return [one for part in every for one in part if one.bytes]


def _between_stages(strategy: PipelineParallel, case: Case, model: Stages) -> list[ExpectedCollective]:
    # over each border between two ranks the activations of every sample go forward, and as many
    # gradients back (Narayanan et al. 2021, section 3.2); those of tied weights are summed over both ends
    mesh = strategy.sizes(case.world_size)
    ranks, element = mesh.size("pp"), BYTES[case.precision.compute]
    owners = [strategy.order.owner(stage, ranks) for stage in range(ranks * strategy.per_rank)]
    borders = sum(here != there for here, there in itertools.pairwise(owners))
    samples = case.batch.global_batch_size // mesh.data_ranks
    passed = model.numbers_between / (mesh.size("tp") if strategy.sequence_parallel else 1)
    crossing = 2 * borders * samples * passed * element / ranks
    calls = 2 * borders * _passes(strategy, case) / ranks
    apart = mesh.size("dp_shard", "tp")
    tied = model.tied_parameters * BYTES[case.precision.master] / apart if owners[0] != owners[-1] else 0
    return [
        ExpectedCollective("send", crossing, "pp", calls),
        ExpectedCollective("recv", crossing, "pp", calls),
        ExpectedCollective("all_reduce", 2 * tied / ranks, "pp", 2 * len(model.tied) / ranks),
    ]


def _of_data(strategy: PipelineParallel, case: Case, model: Stages) -> list[ExpectedCollective]:
    """Over ranks with other rows, which have the same stages."""
    mesh, precision = strategy.sizes(case.world_size), case.precision
    shards, copies, ranks = (mesh.size(name) for name in ("dp_shard", "dp_replicate", "pp"))
    of_layers, layers = sum(model.layers), len(model.layers)
    every = _cut(strategy, case, model.before + of_layers + model.after, layers) / ranks
    if shards == 1:
        # once a step, as DDP alone does it, in buckets
        reduced = every * BYTES[precision.reduce] if copies > 1 else 0
        return [ExpectedCollective("all_reduce", reduced, "dp_replicate")]
    # a layer that is sharded again after each forward pass is gathered before each pass that follows one: in
    # every order of m forward and m backward passes those are the first and the m that have one before them
    again = strategy.micro_batches if strategy.reshard_after_forward else 0
    micro, again_units = case.batch.gradient_accumulation_steps, again * layers / ranks
    units = (layers + bool(model.before) + bool(model.after)) / ranks
    gathered = every + again * _cut(strategy, case, of_layers, layers) / ranks
    reduced = micro * every * BYTES[precision.reduce]
    return [
        ExpectedCollective(
            "all_gather",
            micro * gathered * BYTES[precision.compute],
            "dp_shard",
            micro * (units + again_units) if strategy.per_rank <= ACTIVE else None,
        ),
        ExpectedCollective("reduce_scatter", reduced, "dp_shard", micro * units),
        ExpectedCollective(
            "all_reduce", reduced / shards if copies > 1 else 0, "dp_replicate", micro * units
        ),
    ]


def _inside_layers(strategy: PipelineParallel, case: Case, _model: Stages) -> list[ExpectedCollective]:
    """Over ranks that share rows and have parts of the same layers."""
    mesh, micro = strategy.sizes(case.world_size), case.batch.gradient_accumulation_steps
    sharded, precision = mesh.size("dp_shard") > 1, case.precision
    # FSDP sums what tensor parallelism leaves of a gradient before it scatters it
    norms = micro * BYTES[precision.compute] if sharded else BYTES[precision.master]
    samples, ranks = case.batch.global_batch_size // mesh.data_ranks, mesh.size("pp")
    whole = strategy.tensor_parallelism.collectives(
        case, samples, norms, reductions=micro if sharded else 1, passes=strategy.micro_batches
    )
    return [
        replace(one, bytes=one.bytes / ranks, calls=None if one.calls is None else one.calls / ranks)
        for one in whole
    ]


def _passes(strategy: PipelineParallel, case: Case) -> int:
    """How often a stage runs forward in a step."""
    return strategy.micro_batches * case.batch.gradient_accumulation_steps


def kept(strategy: PipelineParallel, case: Case, model: Stages, stages: Sequence[range]) -> dict[str, float]:
    """Bytes of the model states of the rank that has most, by kind; *stages* have these layers."""
    mesh, held = strategy.sizes(case.world_size), defaultdict[int, list[float]](list)
    for stage, layers in enumerate(stages):
        own = _cut(strategy, case, model.parameters(layers), len(layers))
        held[strategy.order.owner(stage, mesh.size("pp"))].append(own)
    largest, shards = max(held.values(), key=sum), mesh.size("dp_shard")
    table = zero_table(
        case, round(sum(largest)), stored=case.precision.master, shards=(shards, shards, shards)
    )
    if shards > 1:
        table["gradients"] = max(_whole_gradients(strategy, case, own, shards) for own in held.values())
    return table


def _whole_gradients(strategy: PipelineParallel, case: Case, stages: Sequence[float], shards: int) -> float:
    """Bytes of gradients of *stages* of a rank, by their parameters: whole until the last pass of a stage."""
    whole, reduced = BYTES[case.precision.reduce], BYTES[case.precision.master] / shards
    # of the micro-batch of the suite before
    is_again = case.batch.gradient_accumulation_steps > 1
    if not strategy.goes_back_by_stages(case.world_size):
        return sum(stages) * (whole + is_again * reduced)
    # the last stage is reduced before the one in front of it has gradients
    return max(
        own * whole + sum(stages if is_again else stages[place + 1 :]) * reduced
        for place, own in enumerate(stages)
    )


def _cut(strategy: PipelineParallel, case: Case, parameters: int, layers: int) -> float:
    """Parameters of *layers* that a rank has of *parameters*: norms whole, of all else its part."""
    devices, splits = strategy.sizes(case.world_size).size("tp"), splits_of(case)
    if devices == 1 or splits is None:
        return parameters
    # the norm behind the last layer is spread over all of them
    whole = splits.whole_parameters * layers / splits.layers
    return whole + (parameters - whole) / devices
