from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from distbench.data.base import DataShape
from distbench.workloads.base import Workload, cross_entropy
from distbench.workloads.stages import PipelineStages

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(frozen=True)
class Drowsy(Workload):
    """Layers that sleep as long forward as for their input's gradient and for their weight's."""

    default_data: ClassVar[str] = "digits"

    depth: int = 8
    """Number of layers."""
    seconds: float = 0.1
    """That each sleeps three times for a micro-batch."""
    slower: float = 1.0
    """Times as long that the first one sleeps."""

    @property
    def shape(self) -> DataShape:
        return DataShape("features", 64, 10)

    def pipeline_stages(self) -> PipelineStages:
        return PipelineStages(
            (2 * 64,) * self.depth,
            embedding_parameters=0,
            head_parameters=65 * 10,
            activation_shape=(64,),
            input_array="features",
        )

    def build_stage(self, module: nn.Module, layers: range) -> nn.Module:
        from torch import nn

        children = [*module.named_children()]
        own = children[layers.start : layers.stop + (layers.stop == self.depth)]
        return nn.Sequential(OrderedDict(own))

    def module(self) -> nn.Module:
        from torch import nn

        naps = [self.slower * self.seconds, *[self.seconds] * (self.depth - 1)]
        return nn.Sequential(*map(_layer, naps), nn.Linear(64, 10))

    def layers(self, module: nn.Module) -> list[nn.Module]:
        from torch import nn

        return [child for child in module.children() if not isinstance(child, nn.Linear)]

    def loss(self, module: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return cross_entropy(module(batch["features"]), batch["labels"])


def _layer(seconds: float) -> nn.Module:
    """A layer whose two gradients are functions of their own, so that a schedule can tell them apart."""
    import torch
    from torch import nn

    class Slow(torch.autograd.Function):
        """The same tensor, and as much of a nap."""

        @staticmethod
        def forward(ctx, tensor, forward_s):  # type: ignore[no-untyped-def]
            time.sleep(forward_s)
            return tensor.view_as(tensor)

        @staticmethod
        def backward(ctx, gradient):  # type: ignore[no-untyped-def]
            time.sleep(seconds)
            return gradient, None

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(64))
            # the first layer's input has no gradient: with this there is one to sleep for
            self.shift = nn.Parameter(torch.zeros(64))

        def forward(self, tensor: torch.Tensor) -> torch.Tensor:
            return Slow.apply(tensor + self.shift, seconds) + Slow.apply(self.weight, 0.0)

    return Layer()
