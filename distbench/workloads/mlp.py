"""``mlp``: the fully connected classifier of every first tutorial."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from distbench.core.bounds import Count
from distbench.data.base import DataShape
from distbench.workloads.base import Workload, cross_entropy
from distbench.workloads.module_calls import ModuleCall
from distbench.workloads.stages import PipelineStages

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(frozen=True)
class Mlp(Workload):
    """A fully connected classifier with ReLU, by default 64-1024-1024-10.

    The tutorials' is 784-1024-1024-10 for the 28 x 28 pixels of MNIST; ours begins with 64,
    because the handwritten digits that scikit-learn carries are 8 x 8.
    """

    default_data = "digits"
    has_biases = True

    in_features: Count = 64
    """Features of one sample."""
    hidden: Count = 1024
    """Width of each hidden layer."""
    depth: Count = 2
    """Number of hidden layers."""
    classes: Count = 10
    """Number of classes."""

    @property
    def shape(self) -> DataShape:
        return DataShape("features", self.in_features, self.classes)

    def parameters(self) -> int:
        return self._weight_count() + self.depth * self.hidden + self.classes

    def tensor_shapes(self) -> tuple[tuple[int, ...], ...]:
        widths = [self.in_features, *[self.hidden] * self.depth, self.classes]
        return tuple(
            shape for before, after in itertools.pairwise(widths) for shape in ((after, before), (after,))
        )

    def module_calls(self) -> ModuleCall:
        widths, calls = [self.in_features, *[self.hidden] * self.depth, self.classes], list[ModuleCall]()
        for before, after in itertools.pairwise(widths):
            own = ((f"{len(calls)}.weight", before * after), (f"{len(calls)}.bias", after))
            # between linear layers are ReLUs
            linear = ModuleCall(own, multiplies=True, ends_with_product=True, takes_data=not calls)
            calls += [linear, ModuleCall()]
        return ModuleCall(calls=tuple(calls[:-1]), takes_data=True)

    def flops_per_sample(self) -> int:
        """``6 N`` with N the weights of the matrices; biases and ReLU are not counted.

        The gradient of the first layer's input, which is never computed, is counted as in PaLM's
        formula, which does so for every layer.
        """
        return 6 * self._weight_count()

    def recomputed_flops_per_sample(self) -> int:
        """0: a layer is one product, and the backward pass needs only its input."""
        return 0

    def pipeline_stages(self) -> PipelineStages:
        widths = [self.in_features, *[self.hidden] * self.depth]
        return PipelineStages(
            layer_parameters=tuple((before + 1) * after for before, after in itertools.pairwise(widths)),
            embedding_parameters=0,
            head_parameters=(self.hidden + 1) * self.classes,
            activation_shape=(self.hidden,),
            input_array="features",
        )

    def build_stage(self, module: nn.Module, layers: range) -> nn.Module:
        from torch import nn

        # each layer is followed by its ReLU, and the last of them by the classifier
        places = range(2 * layers.start, 2 * layers.stop + (layers.stop == self.depth))
        children = list(module.named_children())
        return nn.Sequential(OrderedDict(children[place] for place in places))

    def module(self) -> nn.Module:
        from torch import nn

        widths = [self.in_features, *[self.hidden] * self.depth]
        hidden = [(nn.Linear(before, after), nn.ReLU()) for before, after in itertools.pairwise(widths)]
        return nn.Sequential(*itertools.chain(*hidden), nn.Linear(self.hidden, self.classes))

    def layers(self, module: nn.Module) -> list[nn.Module]:
        # every second child is a ReLU, and the classifier at the end belongs to the root
        named = dict(module.named_children())
        return [named[str(place)] for place in range(0, 2 * self.depth, 2) if str(place) in named]

    def loss(self, module: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return cross_entropy(module(batch["features"]), batch["labels"])

    def _weight_count(self) -> int:
        inner = (self.depth - 1) * self.hidden * self.hidden
        return self.in_features * self.hidden + inner + self.hidden * self.classes
