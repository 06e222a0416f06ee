"""A model into which the gate's campaign plants what makes a step longer, by variables of the ranks."""

from __future__ import annotations

import os
import time

import torch
import torch.distributed as dist
from torch import nn

KIND, SECONDS = os.environ.get("PLANT", ""), float(os.environ.get("PLANT_S", "0"))
RANK = int(os.environ.get("RANK", "0"))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Planted(nn.Module):
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
        if KIND == "forward" or (KIND == "rank" and RANK == 1):
            spin(SECONDS)
        if KIND == "all-reduce" and dist.is_initialized():
            dist.all_reduce(self.embedding.weight.detach().clone())
        return self.head(x)


def spin(seconds: float) -> None:
    """Keep the core busy, as a slower kernel does; a sleep would leave it to others."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass
