"""Requirements and bubble of pipelines. Imports no torch."""

from __future__ import annotations

from distbench.core.case import Case
from distbench.core.units import format_count
from distbench.strategies.description import RankPasses
from distbench.strategies.requirements import undeclared_problem
from distbench.workloads.base import workload_of
from distbench.workloads.stages import PipelineStages


def stages_of(case: Case) -> PipelineStages | None:
    """Division of the model of *case* between its layers; None: ``undeclared_stages`` gives the reason."""
    model = workload_of(case).pipeline_stages()
    return None if model is None or model.unsupported_reason else model


def undeclared_stages(case: Case) -> str:
    """Reason why a workload that declares no stages, or rules them out, can't be trained in a pipeline."""
    if (model := workload_of(case).pipeline_stages()) and model.unsupported_reason:
        return f"pipeline parallelism: {model.unsupported_reason}"
    parts = "its layers in execution order, and the tensors that pass between them"
    return undeclared_problem(
        case,
        "pipeline parallelism",
        parts,
        "pipeline_stages() and build_stage()",
        "transformer or mlp",
        "pp_plan",
    )


def too_many_stages_text(layers: int, stages: int) -> str:
    """Reason why a model of *layers* layers can't have that many *stages*."""
    return f"{format_count(layers, 'layer')} can't be split into {stages} stages"


def split_evenly(layers: int, stages: int) -> list[range]:
    """The same number of *layers* in each of *stages*; the first ones take the remainder."""
    each, more = divmod(layers, stages)
    ends = [stage * each + min(stage, more) for stage in range(stages + 1)]
    return [range(ends[stage], ends[stage + 1]) for stage in range(stages)]


def bubble_fraction(ranks: int, micro_batches: int, stages_per_rank: int = 1) -> float:
    """Fraction of a step that a rank is idle, if all stages are equally fast and messages cost nothing.

    (p - 1) / (v m + p - 1) for p ranks, m micro-batches, v stages per rank: Narayanan et al. 2021
    (arXiv:2104.04473, section 2.2), whose ``(p - 1) / (v m)`` is relative to the time without idling.
    """
    return (ranks - 1) / (stages_per_rank * micro_batches + ranks - 1)


def pipeline_passes(whole: RankPasses, stages: int, micro_batches: int, bubble: float | None) -> RankPasses:
    """Passes of a rank with one of *stages* parts of the model, of which *whole* are those of all layers.

    *micro_batches*: parts into which the pipeline splits the samples of a pass.
    """
    return RankPasses(whole.count * micro_batches, whole.samples / micro_batches, 1 / stages, bubble)


def activations_in_flight(stage: int, stages: int, micro_batches: int) -> int:
    """Maximum number of micro-batches whose activations *stage* holds in 1F1B: 1 + later stages.

    Narayanan et al. 2021 (arXiv:2104.04473, section 2.2).
    """
    return min(micro_batches, stages - stage)
