"""Models for packed rows, named by suites of the tests as ``packed:...``; some let rows mix."""

import torch
from small import Small


class Apart(Small):
    """Each token gets the mean of those before it in its own row."""

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor | None = None) -> torch.Tensor:  # type: ignore[override]
        x = self.embedding(tokens)
        places = torch.arange(tokens.shape[1])
        row_places = places.expand(tokens.shape) if positions is None else self.seen(positions)
        back = places[:, None] - places
        mask = ((back >= 0) & (back <= row_places.unsqueeze(-1))).to(x.dtype)
        x = x + mask / mask.sum(-1, keepdim=True) @ x
        for layer in self.layers:
            x = layer(x)
        return self.head(x)

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

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor | None = None) -> torch.Tensor:  # type: ignore[override]
        return super().forward(tokens, positions) + self.places(torch.arange(tokens.shape[1]))
