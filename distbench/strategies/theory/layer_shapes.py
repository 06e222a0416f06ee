"""Shapes of the parameters of a model, by layer. Imports no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

from distbench.core.case import Case
from distbench.strategies.theory.pipeline_parallelism import stages_of
from distbench.workloads.base import workload_of

Shape = tuple[int, ...]


@dataclass(frozen=True)
class LayerShapes:
    """Shapes of all parameters of a model, in the order of their first use."""

    before: list[Shape]
    """Those before the layers."""
    layers: list[list[Shape]]
    after: list[Shape]

    @property
    def outside(self) -> list[Shape]:
        """Those that are in no layer."""
        return [*self.before, *self.after]


def layer_shapes(case: Case) -> LayerShapes | None:
    """Shapes of the parameters of *case*; None: the workload does not report them, or no layers."""
    shapes, stages = workload_of(case).tensor_shapes(), stages_of(case)
    if shapes is None or stages is None:
        return None
    left = list(shapes)

    def take(elements: int) -> list[Shape]:
        taken = []
        while elements > 0 and left:
            elements -= math.prod(left[0])
            taken.append(left.pop(0))
        return taken

    before = take(stages.embedding_parameters)
    layers = [take(elements) for elements in stages.layer_parameters]
    return LayerShapes(before, layers, left)
