from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from distbench.data.base import DataShape
from distbench.workloads.base import Workload

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(frozen=True)
class Line(Workload):
    """One linear layer: the least that can be trained."""

    default_data: ClassVar[str] = "digits"

    bias: bool = True
    """Whether the line may miss the origin."""

    @property
    def shape(self) -> DataShape:
        return DataShape("features", 64, 10)

    @property
    def tokens_per_sample(self) -> int:
        return 1

    def parameters(self) -> int:
        return 640 + 10 * self.bias

    def flops_per_sample(self) -> int:
        return 6 * 640

    def module(self) -> nn.Module:
        from torch import nn

        return nn.Sequential(nn.Linear(64, 10, bias=self.bias))

    def layers(self, module: nn.Module) -> list[nn.Module]:
        return list(module.children())

    def loss(self, module: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        from torch.nn import functional

        return functional.cross_entropy(module(batch["features"]), batch["labels"])
