"""A head whose loss is computed in chunks of positions, in the loss function and in the module's forward."""

from __future__ import annotations

import torch
from small import Small
from torch import nn
from torch.nn import functional


class Body(Small):
    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return x


def outside(module: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Calls the module, and then uses the head's weight."""
    hidden = module(batch["input_ids"])
    losses = [
        functional.cross_entropy((part @ module.head.weight.T).flatten(0, 1), labels.flatten())
        for part, labels in zip(hidden.chunk(4, 1), batch["labels"].chunk(4, 1), strict=True)
    ]
    return torch.stack(losses).mean()


def around(module: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Calls parts of the module in place of it."""
    x = module.embedding(batch["input_ids"])
    for layer in module.layers:
        x = layer(x)
    return functional.cross_entropy(module.head(x).flatten(0, 1), batch["labels"].flatten())


def wrong(module: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Calls the module alone, and has another mistake."""
    return functional.cross_entropy(module(batch["input_ids"]), batch["labels"].flatten())


class Chunked(Body):
    """As the page of suites writes it: the loss is what the forward pass gives."""

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        hidden = super().forward(tokens)
        losses = [
            functional.cross_entropy(self.head(part).flatten(0, 1).float(), right.flatten())
            for part, right in zip(hidden.chunk(4, 1), labels.chunk(4, 1), strict=True)
        ]
        return torch.stack(losses).mean()


def inside(module: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return module(batch["input_ids"], batch["labels"])
