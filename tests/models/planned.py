"""A decoder as people write them: positions, a mask and a tied head. Plans of a suite split it."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

WIDTH, HEAD, LENGTH = 32, 8, 32


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = (part(x).unflatten(-1, (-1, HEAD)).transpose(1, 2) for part in (self.q, self.k, self.v))
        return self.o(
            functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)
        )


class Block(nn.Module):
    """Its linear layers and norms stand side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.other = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.up, self.down = nn.Linear(WIDTH, 64, bias=False), nn.Linear(64, WIDTH)

    def forward(self, x: torch.Tensor, *, mask: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm(x), mask)
        return x + self.down(functional.gelu(self.up(self.other(x))))


class Decoder(nn.Module):
    """Bytes in, logits out."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(256, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256, bias=False)
        self.head.weight = self.tokens.weight
        self.register_buffer("mask", torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril(), persistent=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        _, length = ids.size()
        x = self.tokens(ids) + self.positions(torch.arange(length, device=ids.device))
        for block in self.blocks:
            x = block(x, mask=self.mask[:length, :length])
        return self.head(self.norm(x))


class Scaled(Decoder):
    """What it does between its layers no plan can say."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(0.5 * x, mask=self.mask)
        return self.head(self.norm(x))


class Masked(Decoder):
    """Its layers take a mask that depends on the ids, which the first stage alone has."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x, mask=self.mask & (ids != 0)[:, None, None, :])
        return self.head(self.norm(x))


class Skipping(Decoder):
    """One layer runs twice, and one not at all."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids)
        for block in (self.blocks[0], self.blocks[0], self.blocks[2]):
            x = block(x, mask=self.mask)
        return self.head(self.norm(x))


class HeadFirst(Decoder):
    """The head comes first, so that its name is that of the weight which it has with the embedding."""

    def __init__(self) -> None:
        super().__init__()
        tokens = self.tokens
        del self.tokens
        self.tokens = tokens
