"""Models whose FLOPs are counted, or can't be."""

from __future__ import annotations

import torch
from torch import nn


class Tower(nn.Module):
    """Four layers of one matrix each between an embedding and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, 16)
        self.layers = nn.ModuleList(nn.Linear(16, 16, bias=False) for _ in range(4))
        self.head = nn.Linear(16, 256, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.head(x)


class Frozen(Tower):
    """Only the second layer is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(False)
        self.layers[1].requires_grad_(True)


class Recurrent(Tower):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.LSTM(16, 16, batch_first=True, bias=False)])

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers[0](self.embedding(tokens))[0])


class Chosen(Tower):
    """Which tokens a layer takes depends on their values."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        x = x.index_put((tokens > 99,), self.layers[0](x[tokens > 99]))
        return self.head(x)


@torch.library.custom_op("counted::kernel", mutates_args=())
def kernel(x: torch.Tensor) -> torch.Tensor:
    """Work that nobody but its author knows."""
    return x * 2


kernel.register_fake(torch.empty_like)
kernel.register_autograd(lambda _context, gradient: gradient * 2)


class Fused(Tower):
    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(kernel(self.embedding(tokens)))
