"""Context-parallel split: rows divided by position, over devices that share rows. Without torch.

Only attention combines positions; everything else works on each position separately.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

AttentionFunction = Callable[["torch.Tensor", "torch.Tensor", "torch.Tensor"], "torch.Tensor"]
"""Maps queries (batch, heads, positions, width), and keys and values (batch, kv_heads, positions, width), to
the output of each query (batch, heads, positions, width)."""
AttentionWrapper = Callable[[AttentionFunction], AttentionFunction]
"""Turns one attention function into another."""


@dataclass(frozen=True)
class ContextSplit:
    """Facts about a model for context parallelism."""

    sharded_arrays: tuple[str, ...]
    """Arrays of a batch that are split: their second axis has the positions."""
    label_array: str
    """The one with the labels, which give the weight of a part in the mean loss."""
    seq_len: int
    """Positions of one row."""
    heads: int
    """Heads of queries."""
    kv_heads: int
    """Heads of keys and values."""
    head_dim: int
    """Elements of one head at one position."""
    layers: int
    """Layers with an attention each."""
    is_full_attention: bool
    """True if a position sees all positions before it, and not only a window."""
    unsupported_reason: str = ""
    """Reason why rows of this model can't be split over any number of devices; empty: they can."""

    @property
    def attention_values_per_position(self) -> int:
        """Elements of one position in the queries, keys, values and outputs of all layers."""
        return 2 * self.layers * (self.heads + self.kv_heads) * self.head_dim
