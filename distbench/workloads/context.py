"""How the rows of a model can be cut by positions, over devices that share rows. Without torch.

Only attention looks from one position to another; all else works on each by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

AttentionFunction = Callable[["torch.Tensor", "torch.Tensor", "torch.Tensor"], "torch.Tensor"]
"""Of queries (batch, heads, positions, width), and keys and values (batch, kv_heads, positions, width), what
each query gets (batch, heads, positions, width)."""
AttentionWrapper = Callable[[AttentionFunction], AttentionFunction]
"""Makes one attention of another."""


@dataclass(frozen=True)
class ContextSplit:
    """What context parallelism has to know of a model."""

    sharded_arrays: tuple[str, ...]
    """Arrays of a batch that are cut: their second axis has the positions."""
    label_array: str
    """The one of them that has the labels, by which is known how much a part counts in the mean loss."""
    seq_len: int
    """Positions of one row."""
    heads: int
    """Heads of queries."""
    kv_heads: int
    """Heads of keys and values."""
    head_dim: int
    """Numbers of one head at one position."""
    layers: int
    """Layers with an attention each."""
    is_full_attention: bool
    """Whether a position sees all before it, and not a window of them."""
    unsupported_reason: str = ""
    """Why rows of this model can't be cut over any number of devices; empty: they can."""

    @property
    def attention_values_per_position(self) -> int:
        """Numbers of one position in the queries, keys, values and outputs of all layers."""
        return 2 * self.layers * (self.heads + self.kv_heads) * self.head_dim
