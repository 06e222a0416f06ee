"""Stages of a pipeline in a script: their layers, ranks, tied weights and tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from distbench.adopt.exported_case import ExportedCase
from distbench.core import registry
from distbench.strategies.pp import PipelineParallel
from distbench.strategies.pp.cuts import ranges_from_sizes
from distbench.strategies.theory.pipeline_parallelism import stages_of
from distbench.workloads.base import Workload
from distbench.workloads.stages import PipelineStages


@dataclass(frozen=True)
class ScriptStages:
    """Stages of a pipeline as a script defines them. Shapes are those of one micro-batch of the pipeline."""

    layers: list[range]
    """Numbers of the layers of each stage."""
    ranks: list[int]
    """Rank of each stage in its pipeline."""
    first_and_last_on_one_rank: bool
    has_dtensor_parameters: bool
    """True if the parameters of stages are distributed tensors."""
    tied_copies: Mapping[str, str]
    """Tied weights that have two copies, on two ranks or because stages keep their own parts: name in the
    last stage -> name in the first."""
    takes_ids: bool
    """True if the first stage takes token ids."""
    input_shape: tuple[int, ...]
    hidden_shape: tuple[int, ...]
    output_shape: tuple[int, ...]

    @classmethod
    def of(cls, measured: ExportedCase, strategy: PipelineParallel) -> ScriptStages:
        """Stages of a case that was trained with *strategy*."""
        case, model, rules = measured.case, _model(measured), strategy.schedule_rules
        layers, ranks = layers_of_stages(measured, strategy), measured.mesh["pp"]
        workload: Workload = registry.create_plugin("workloads", case.workload)
        shape, samples = workload.shape, case.batch.micro_batch_size // strategy.micro_batches
        has_dtensors = bool(measured.tensor_parallelism) or "dp_shard" in measured.mesh
        has_copies = has_dtensors or not rules.is_v_shaped
        return cls(
            layers=layers,
            ranks=[rules.rank_of_stage(number, ranks) for number in range(len(layers))],
            first_and_last_on_one_rank=rules.is_v_shaped,
            has_dtensor_parameters=has_dtensors,
            tied_copies=model.tied_names if has_copies else {},
            takes_ids=shape.takes_ids,
            input_shape=(samples, *shape.input_shape),
            hidden_shape=(samples, *strategy.activation_shape(model, case.world_size)),
            output_shape=(samples, *shape.label_shape, shape.classes),
        )


def layers_of_stages(measured: ExportedCase, strategy: PipelineParallel) -> list[range]:
    """Numbers of the layers of each stage: as reported by the live engine, which may have measured them."""
    if stages_recorded(measured):
        return ranges_from_sizes(measured.effective["layers_of_stages"])
    return strategy.split_layers(_model(measured), strategy.device_mesh(measured.case.world_size).size("pp"))


def stages_recorded(measured: ExportedCase) -> bool:
    """True if the record has the layers of each stage."""
    layers = measured.effective.get("layers_of_stages")
    return isinstance(layers, list) and all(type(count) is int for count in layers)


def _model(measured: ExportedCase) -> PipelineStages:
    model: PipelineStages | None = stages_of(measured.case)
    assert model is not None, "a model that can't be split was not trained with a pipeline"
    return model
