"""Pipeline split of a model between its layers. Without torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class PipelineStages:
    """Pipeline split: layers in a row; the first stage also has the modules before, the last those after.

    Only one tensor passes from a stage to the next: each stage makes the other arguments of its layers.
    """

    layer_parameters: tuple[int, ...]
    """Parameters of each layer, in the order in which they run."""
    embedding_parameters: int
    """Parameters of the modules before the layers: the embedding."""
    head_parameters: int
    """Parameters of the modules after the layers: norm and head, with the last stage's tied copies."""
    activation_shape: tuple[int, ...]
    """Shape of the tensor that passes from a layer to the next, for one sample."""
    input_array: str
    """Name of the array of a batch that the first stage takes."""
    tied_names: Mapping[str, str] = field(default_factory=dict)
    """Parameter of the last stage that is a copy of one of the first -> name of the latter, the only one in
    the plain module."""
    tied_parameters: int = 0
    """Number of parameters that both stages have."""
    unsupported_reason: str = ""
    """Reason why this model can't be split between its layers; empty: it can."""

    @property
    def activation_size(self) -> int:
        """Elements that pass from a layer to the next, for one sample."""
        return math.prod(self.activation_shape)

    def parameters(self, layers: range) -> int:
        """Number of parameters of the stage with *layers*."""
        before = self.embedding_parameters if layers.start == 0 else 0
        after = self.head_parameters if layers.stop == len(self.layer_parameters) else 0
        return before + sum(self.layer_parameters[layers.start : layers.stop]) + after
