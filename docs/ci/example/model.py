"""The model that this repository is about: a small language model of bytes."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(activation(self.up(self.norm(x))))


def activation(x: torch.Tensor) -> torch.Tensor:
    return nn.functional.gelu(x)


class Model(nn.Module):
    """Tokens (rows, length) in, logits (rows, length, 256) out."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, 256)
        self.layers = nn.ModuleList(Block(256) for _ in range(4))
        self.head = nn.Linear(256, 256)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)
