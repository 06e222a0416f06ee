"""A model that asks its layers for their class and attributes, and calls them in many ways."""

from __future__ import annotations

import inspect

import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self, gain: float) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.gain = gain

    def forward(
        self, x: torch.Tensor, /, *shifts: torch.Tensor, scale: float = 1.0, more: dict[str, object]
    ) -> dict[str, torch.Tensor]:
        hidden = self.up(x + sum(shifts))
        if hidden.dtype == torch.bfloat16:
            assert all(shift.dtype == torch.bfloat16 for shift in shifts), "floats are cast on their way in"
        added = self.down(torch.tanh(hidden) * scale)
        bias = more["bias"]
        assert more["mode"] == "plain" and isinstance(bias, list)
        return {"x": x + added * self.gain + bias[0]}


class Particular(nn.Module):
    """Bytes in, logits out."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, 16)
        self.layers = nn.ModuleList([Layer(0.5), Layer(2.0)])
        self.head = nn.Linear(16, 256)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        shift = torch.full((16,), 0.25)
        for number, layer in enumerate(self.layers):
            if not isinstance(layer, Layer):
                raise TypeError(f"layer {number} is a {type(layer).__name__}")
            if list(inspect.signature(layer.forward).parameters) != ["x", "shifts", "scale", "more"]:
                raise TypeError(f"layer {number} is called otherwise")
            more = {"mode": "plain", "bias": [torch.zeros(16)]}
            x = layer(x, *[shift] * number, scale=layer.gain, more=more)["x"]
        return self.head(x)
