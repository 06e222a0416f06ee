"""A decoder as a prediction counts it: the work of its layers and of its head, in operators.

Work is that of one rank for one micro-batch. Elements have 2 bytes in passes over arrays of half precision.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

_BACKWARD_OF_ATTENTION = 2.5
"""FLOPs of attention's backward pass by those of its forward pass: five products in place of two
(FlashAttention-2, arXiv:2307.08691, section 3.1)."""


@dataclass(frozen=True)
class DecoderShape:
    """Dimensions of a decoder whose layers are equal."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    gated: bool
    """True if the feed-forward network has three matrices (SwiGLU), not two."""
    tied: bool
    """True if the head is the embedding."""
    window: int | None = None
    """Positions that a query sees; None: all up to its own."""

    @property
    def head_dim(self) -> int:
        """Width of an attention head."""
        return self.hidden // self.heads

    @property
    def queries_keys_values(self) -> int:
        """Columns of the projection to queries, keys and values."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def layer_parameters(self) -> int:
        """Parameters of a layer's matrices."""
        attention = self.hidden * (self.queries_keys_values + self.heads * self.head_dim)
        return attention + (3 if self.gated else 2) * self.hidden * self.ffn


@dataclass(frozen=True)
class MatrixProduct:
    """Product of a matrix of *rows* x *inner* and one of *inner* x *columns*."""

    rows: float
    inner: float
    columns: float

    @property
    def flops(self) -> float:
        """A multiplication and an addition for each of its terms."""
        return 2 * self.rows * self.inner * self.columns

    @property
    def elements(self) -> float:
        """Elements that it reads and writes."""
        return self.rows * self.inner + self.inner * self.columns + self.rows * self.columns

    @property
    def operands(self) -> float:
        """Elements that it reads."""
        return self.rows * self.inner + self.inner * self.columns


def layer_products(decoder: DecoderShape, tokens: float, split: int) -> Iterator[MatrixProduct]:
    """Yield the products of a layer's forward pass over *tokens* tokens; each matrix is cut in *split*."""
    hidden, ffn = decoder.hidden, decoder.ffn / split
    yield MatrixProduct(tokens, hidden, decoder.queries_keys_values / split)
    yield MatrixProduct(tokens, decoder.heads * decoder.head_dim / split, hidden)
    yield MatrixProduct(tokens, hidden, 2 * ffn if decoder.gated else ffn)
    yield MatrixProduct(tokens, ffn, hidden)


def backward_products(product: MatrixProduct) -> Iterator[MatrixProduct]:
    """Yield the products for the gradients of both factors of *product*."""
    yield MatrixProduct(product.rows, product.columns, product.inner)
    yield MatrixProduct(product.inner, product.rows, product.columns)


def attention_flops(decoder: DecoderShape, tokens: float, length: int, split: int) -> float:
    """FLOPs of a layer's causal attention forward, its heads divided among *split* ranks.

    A query sees half of the *length* positions on average, or those of its window.
    """
    visible_positions = length / 2 if decoder.window is None else min(decoder.window, length / 2)
    return 4 * tokens * visible_positions * decoder.heads * decoder.head_dim / split


def attention_backward_flops(forward: float) -> float:
    """FLOPs of attention's backward pass, whose forward pass has *forward*."""
    return _BACKWARD_OF_ATTENTION * forward


def head_product(decoder: DecoderShape, tokens: float, split: int) -> MatrixProduct:
    """The product with the head's matrix, cut in *split*."""
    return MatrixProduct(tokens, decoder.hidden, decoder.vocab / split)
