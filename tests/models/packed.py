"""Models for packed rows, named by suites of the tests as ``packed:...``; some let rows mix."""

from dataclasses import replace
from typing import Any

import torch
from small import Small


class Apart(Small):
    """Each token gets the mean of those before it in its own row."""

    def forward(self, tokens: torch.Tensor, position_ids: torch.Tensor | None = None) -> torch.Tensor:  # type: ignore[override]
        x = self.embedding(tokens)
        places = torch.arange(tokens.shape[1])
        row_places = places.expand(tokens.shape) if position_ids is None else self.seen(position_ids)
        back = places[:, None] - places
        mask = ((back >= 0) & (back <= row_places.unsqueeze(-1))).to(x.dtype)
        x = self.combined(x, mask / mask.sum(-1, keepdim=True) @ x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)

    def combined(self, x: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
        return x + mean

    def seen(self, positions: torch.Tensor) -> torch.Tensor:
        """Number of tokens before each one that it sees."""
        return positions


class Mixing(Apart):
    """Each token gets the mean of all before it."""

    def seen(self, positions: torch.Tensor) -> torch.Tensor:
        return torch.arange(positions.shape[1]).expand(positions.shape)


class Placed(Apart):
    """Tokens are told apart by their place in the packed row."""

    def __init__(self) -> None:
        super().__init__()
        self.places = torch.nn.Embedding(64, 256)

    def forward(self, tokens: torch.Tensor, position_ids: torch.Tensor | None = None) -> torch.Tensor:  # type: ignore[override]
        return super().forward(tokens, position_ids) + self.places(torch.arange(tokens.shape[1]))


class MixingBehindZeroHead(Mixing):
    def __init__(self) -> None:
        super().__init__()
        torch.nn.init.zeros_(self.head.weight)


class Gated(Apart):
    """What a token gets from others is projected by zeros, as it is with LoRA or adaLN-zero."""

    def __init__(self) -> None:
        super().__init__()
        self.projection = torch.nn.Linear(16, 16, bias=False)
        torch.nn.init.zeros_(self.projection.weight)

    def combined(self, x: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
        return x + self.projection(mean)


class MixingBehindZeroProjection(Gated, Mixing):
    pass


class ApartBehindZeroHead(Apart):
    def __init__(self) -> None:
        super().__init__()
        torch.nn.init.zeros_(self.head.weight)
        self.head.weight.data[0] *= -1


class EachAlone(Small):
    """No token sees another one."""

    def forward(self, tokens: torch.Tensor, **_: Any) -> torch.Tensor:
        return super().forward(tokens)


class TakesTargets(Small):
    def forward(self, tokens: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:  # type: ignore[override]
        if targets is not None:
            raise ValueError("not enough values to unpack")
        return super().forward(tokens)


class RaisesTypeError(Apart):
    def forward(self, tokens: torch.Tensor, position_ids: torch.Tensor | None = None) -> torch.Tensor:  # type: ignore[override]
        raise TypeError("no cats in the bag")


def zero_headed_decoder() -> torch.nn.Module:
    from distbench.workloads._decoder import Decoder
    from distbench.workloads._dimensions import PRESETS

    decoder = Decoder(replace(PRESETS["tiny"], tied=False))
    torch.nn.init.zeros_(decoder.head.weight)
    return decoder
