"""The stages of a pipeline as a script names them: their layers, places, tied weights and tensors."""

from __future__ import annotations

from distbench.adopt._python import dtype, lines
from distbench.adopt.base import Measured
from distbench.core import registry
from distbench.data.base import Shape
from distbench.strategies._pipeline import stages_of
from distbench.strategies.pp import PipelineParallel
from distbench.strategies.pp.cuts import ranges
from distbench.workloads.base import Workload
from distbench.workloads.stages import Stages


def constants(measured: Measured) -> str:
    """Statements that say which stages there are, who has them, and what they take and give."""
    strategy, places = strategy_of(measured), measured.mesh["pp"]
    cut = layers_of_stages(measured, strategy)
    owners = [strategy.order.owner(number, places) for number in range(len(cut))]
    tied = ", ".join(f'"{copy}": "{first}"' for copy, first in _model(measured).tied.items())
    return lines(
        f"STAGES = {cut!r}  # numbers of the layers of each stage",
        f"PLACES = {owners!r}  # in a pipeline, of the ranks that have them",
        f"TIED = {{{tied}}}  # in the last stage -> in the first" if ties(measured) else "",
        "# of one of its micro-batches: what the first stage takes, what stages pass on, what the last gives",
        *_shapes(measured),
    )


def layers_of_stages(measured: Measured, strategy: PipelineParallel) -> list[range]:
    """Numbers of the layers of each stage: as the live engine told, which may have measured them."""
    if knows_stages(measured):
        return ranges(measured.effective["layers_of_stages"])
    return strategy.layers_of_stages(_model(measured), strategy.sizes(measured.case.world_size).size("pp"))


def knows_stages(measured: Measured) -> bool:
    """Whether the record says which stage has which layers."""
    told = measured.effective.get("layers_of_stages")
    return isinstance(told, list) and all(type(count) is int for count in told)


def ties(measured: Measured) -> bool:
    """Whether a tensor has two copies: on two ranks, or where stages keep parts of their own."""
    apart = not ends_meet(measured) or are_distributed(measured)
    return apart and bool(_model(measured).tied)


def ends_meet(measured: Measured) -> bool:
    """Whether one rank has both the first and the last stage."""
    return strategy_of(measured).order.is_v


def are_distributed(measured: Measured) -> bool:
    """Whether the parameters of stages are distributed tensors."""
    return bool(measured.cut) or "dp_shard" in measured.mesh


def strategy_of(measured: Measured) -> PipelineParallel:
    """The strategy of a case that is known to be a pipeline."""
    assert measured.pipeline is not None, "of pipelines alone"
    return measured.pipeline


def _shapes(measured: Measured) -> tuple[str, ...]:
    """Tensors without memory: from them torch knows the shapes.

    Otherwise it would run a forward and a backward pass more to learn them, of which DDP takes account (torch
    2.13: "rebuilt parameter indices size is not same").
    """
    strategy, case, shape = strategy_of(measured), measured.case, _shape(measured)
    samples = case.batch.micro_batch_size // strategy.micro_batches
    computed = f'{dtype(case.precision.compute)}, device="meta", requires_grad=True'
    taken = f'{"torch.int64" if shape.takes_ids else "torch.float32"}, device="meta"'
    given = (samples, *shape.label_shape, shape.classes)
    passed = (samples, *strategy.between(_model(measured), case.world_size))
    return (
        f"TAKEN = torch.empty({(samples, *shape.input_shape)}, dtype={taken})",
        f"PASSED = torch.empty({passed}, dtype={computed})",
        f"GIVEN = torch.empty({given}, dtype={computed})",
    )


def _shape(measured: Measured) -> Shape:
    workload: Workload = registry.make("workloads", measured.case.workload)
    return workload.shape


def _model(measured: Measured) -> Stages:
    model: Stages | None = stages_of(measured.case)
    assert model is not None, "what can't be cut was not trained so"
    return model
