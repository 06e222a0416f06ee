"""How a model can be cut between its layers, into the stages of a pipeline. Without torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class PipelineStages:
    """A model as a row of layers: the first stage has what comes before them too, the last what comes after.

    One tensor alone passes from a stage to the next: what else a layer takes, its stage makes anew.
    """

    layer_parameters: tuple[int, ...]
    """Parameters of each layer, in the order in which they run."""
    embedding_parameters: int
    """Parameters of what comes before the layers: the embedding."""
    head_parameters: int
    """Parameters of what comes after them: norm and head, with the last stage's copy of what is tied."""
    activation_shape: tuple[int, ...]
    """Shape of what passes from a layer to the next, of one sample."""
    input_array: str
    """Name of the array of a batch that the first stage takes."""
    tied_names: Mapping[str, str] = field(default_factory=dict)
    """Parameter of the last stage that is a copy of one of the first -> name of that one, which is the
    plain module's only one."""
    tied_parameters: int = 0
    """Parameters that both have."""
    unsupported_reason: str = ""
    """Why this model can't be cut between its layers; empty: it can."""

    @property
    def activation_size(self) -> int:
        """Numbers that pass from a layer to the next, of one sample."""
        return math.prod(self.activation_shape)

    def parameters(self, layers: range) -> int:
        """Parameters of the stage with *layers*."""
        before = self.embedding_parameters if layers.start == 0 else 0
        after = self.head_parameters if layers.stop == len(self.layer_parameters) else 0
        return before + sum(self.layer_parameters[layers.start : layers.stop]) + after
