"""Stages of a pipeline in a script: their layers, ranks, tied weights and tensors."""

from __future__ import annotations

from distbench.adopt._python import dtype, lines
from distbench.adopt.base import ExportedCase
from distbench.core import registry
from distbench.data.base import DataShape
from distbench.strategies._pipeline import stages_of
from distbench.strategies.pp import PipelineParallel
from distbench.strategies.pp.cuts import ranges_from_sizes
from distbench.workloads.base import Workload
from distbench.workloads.stages import PipelineStages


def constants(measured: ExportedCase) -> str:
    """Statements that define the stages, their ranks, and their inputs and outputs."""
    strategy, places = strategy_of(measured), measured.mesh["pp"]
    cut = layers_of_stages(measured, strategy)
    owners = [strategy.schedule_rules.rank_of_stage(number, places) for number in range(len(cut))]
    tied = ", ".join(f'"{copy}": "{first}"' for copy, first in _model(measured).tied_names.items())
    return lines(
        f"STAGES = {cut!r}  # numbers of the layers of each stage",
        f"PLACES = {owners!r}  # in a pipeline, of the ranks that have them",
        f"TIED = {{{tied}}}  # in the last stage -> in the first" if has_tied_copies(measured) else "",
        "# of one of its micro-batches: what the first stage takes, what stages pass on, what the last gives",
        *_shapes(measured),
    )


def layers_of_stages(measured: ExportedCase, strategy: PipelineParallel) -> list[range]:
    """Numbers of the layers of each stage: as reported by the live engine, which may have measured them."""
    if stages_recorded(measured):
        return ranges_from_sizes(measured.effective["layers_of_stages"])
    return strategy.split_layers(_model(measured), strategy.device_mesh(measured.case.world_size).size("pp"))


def stages_recorded(measured: ExportedCase) -> bool:
    """True if the record has the layers of each stage."""
    told = measured.effective.get("layers_of_stages")
    return isinstance(told, list) and all(type(count) is int for count in told)


def has_tied_copies(measured: ExportedCase) -> bool:
    """True if a tensor has two copies: on two ranks, or because stages keep their own parts."""
    apart = not first_and_last_on_one_rank(measured) or has_dtensor_parameters(measured)
    return apart and bool(_model(measured).tied_names)


def first_and_last_on_one_rank(measured: ExportedCase) -> bool:
    """True if one rank has both the first and the last stage."""
    return strategy_of(measured).schedule_rules.is_v_shaped


def has_dtensor_parameters(measured: ExportedCase) -> bool:
    """True if the parameters of stages are distributed tensors."""
    return bool(measured.tensor_parallelism) or "dp_shard" in measured.mesh


def strategy_of(measured: ExportedCase) -> PipelineParallel:
    """Strategy of a case that is known to be a pipeline."""
    assert measured.pipeline is not None, "of pipelines alone"
    return measured.pipeline


def _shapes(measured: ExportedCase) -> tuple[str, ...]:
    """Tensors on the meta device that give torch the shapes.

    Otherwise torch would run an additional forward and backward pass to find them, which DDP counts (torch
    2.13: "rebuilt parameter indices size is not same").
    """
    strategy, case, shape = strategy_of(measured), measured.case, _shape(measured)
    samples = case.batch.micro_batch_size // strategy.micro_batches
    computed = f'{dtype(case.precision.compute)}, device="meta", requires_grad=True'
    taken = f'{"torch.int64" if shape.takes_ids else "torch.float32"}, device="meta"'
    given = (samples, *shape.label_shape, shape.classes)
    passed = (samples, *strategy.activation_shape(_model(measured), case.world_size))
    return (
        f"TAKEN = torch.empty({(samples, *shape.input_shape)}, dtype={taken})",
        f"PASSED = torch.empty({passed}, dtype={computed})",
        f"GIVEN = torch.empty({given}, dtype={computed})",
    )


def _shape(measured: ExportedCase) -> DataShape:
    workload: Workload = registry.create_plugin("workloads", measured.case.workload)
    return workload.shape


def _model(measured: ExportedCase) -> PipelineStages:
    model: PipelineStages | None = stages_of(measured.case)
    assert model is not None, "a model that can't be split was not trained with a pipeline"
    return model
