"""Shapes of a model's trained parameters, on which optimizer states depend."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from distbench.optimizers import ParameterShape
from distbench.workloads.weights import meta_module

if TYPE_CHECKING:
    from torch import nn

    from distbench.workloads.base import Workload


def parameter_shapes(workload: Workload) -> list[ParameterShape]:
    """Shapes of the trained parameters of *workload*, from a module without weights."""
    module = meta_module(workload)
    hidden = hidden_matrices(workload.layers(module))
    return [ParameterShape(tuple(p.shape), id(p) in hidden) for p in module.parameters() if p.requires_grad]


def hidden_matrices(layers: Iterable[nn.Module]) -> set[int]:
    """Ids of the matrices in *layers*: embeddings and output heads, which are in none, are not hidden."""
    return {id(parameter) for layer in layers for parameter in layer.parameters() if parameter.ndim == 2}
