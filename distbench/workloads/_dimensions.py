"""Dimensions of a decoder, and presets. Without torch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial


@dataclass(frozen=True)
class Dimensions:
    """Every dimension of a decoder."""

    dim: int
    depth: int
    heads: int
    kv_heads: int
    ffn_dim: int
    vocab_size: int
    tied: bool
    norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    window: int | None = None
    """Positions that a query sees, its own included; None: all up to its own."""
    experts: int | None = None
    """Experts of a block, of which each token takes some; None: one feed-forward network for all tokens."""
    top_k: int = 2
    capacity_factor: float | None = None

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.dim // self.heads

    def expert_parameters(self) -> int:
        """Number of parameters of all experts of one block; without experts, of its feed-forward network."""
        return (self.experts or 1) * 3 * self.dim * self.ffn_dim

    def block_parameters(self) -> int:
        """Number of parameters of one block."""
        attention = 2 * self.dim * (self.heads + self.kv_heads) * self.head_dim
        router = (self.experts or 0) * self.dim
        return attention + router + self.expert_parameters() + 2 * self.dim

    def active_parameters(self) -> int:
        """Number of parameters of one block that a token is multiplied with: only its own experts count."""
        if self.experts is None:
            return self.block_parameters()
        return (
            self.block_parameters() - self.expert_parameters() * (self.experts - self.top_k) // self.experts
        )

    def parameters(self) -> int:
        """Number of parameters, a tied embedding counted once."""
        embeddings = (1 if self.tied else 2) * self.vocab_size * self.dim
        return self.depth * self.block_parameters() + embeddings + self.dim

    def routed_tokens(self, positions: int) -> int:
        """Tokens of one sample for the experts of a block: each ``top_k`` times, or the total capacity."""
        if self.experts is None or self.capacity_factor is None:
            return self.top_k * positions
        return self.experts * self.expert_capacity(positions)

    def expert_capacity(self, positions: int) -> int:
        """Maximum tokens of one sample for one expert (Switch, arXiv:2101.03961, section 2.2)."""
        assert self.experts and self.capacity_factor, "without experts there is no capacity"
        return min(positions, math.ceil(self.capacity_factor * self.top_k * positions / self.experts))

    def tensor_shapes(self) -> Iterator[tuple[int, ...]]:
        """Yield the shapes of all parameters in the order of their first use, a tied embedding once."""
        table, keys = (self.vocab_size, self.dim), (self.kv_heads * self.head_dim, self.dim)
        queries = (self.heads * self.head_dim, self.dim)
        attention = (queries, keys, keys, (self.dim, self.heads * self.head_dim))
        into, out = (self.ffn_dim, self.dim), (self.dim, self.ffn_dim)
        ffn: tuple[tuple[int, ...], ...] = (into, into, out)
        if self.experts is not None:
            # all experts of a block are in one tensor, which is the right factor of a product
            ffn = (
                (self.experts, self.dim),
                (self.experts, *out),
                (self.experts, *out),
                (self.experts, *into),
            )
        norm = (self.dim,)
        yield table
        for _ in range(self.depth):
            yield from (norm, *attention, norm, *ffn)
        yield norm
        if not self.tied:
            yield table

    def problems(self) -> Iterator[str]:
        """Yield problems of the dimensions, with their names and values."""
        if self.dim % self.heads:
            yield f"heads = {self.heads} does not divide dim = {self.dim}"
        elif self.head_dim % 2:
            yield (
                f"heads = {self.heads} divides dim = {self.dim} into heads of width {self.head_dim}, "
                "but rotary positions need an even width"
            )
        if self.heads % self.kv_heads:
            yield f"kv_heads = {self.kv_heads} does not divide heads = {self.heads}"
        if self.experts is not None and self.top_k > self.experts:
            yield f"top_k = {self.top_k} is more than experts = {self.experts}"


_llama = partial(Dimensions, kv_heads=8, vocab_size=128256, rope_theta=500000.0)

PRESETS = {
    "tiny": Dimensions(dim=128, depth=4, heads=4, kv_heads=2, ffn_dim=512, vocab_size=256, tied=True),
    # as many multiplications per token as in tiny: two experts of half its width
    "moe-tiny": Dimensions(
        dim=128, depth=4, heads=4, kv_heads=2, ffn_dim=256, vocab_size=256, tied=True, experts=8
    ),
    # ffn_dim is two thirds of GPT-2's 3072, because SwiGLU has three matrices where GPT-2 has two
    "gpt2-small": Dimensions(
        dim=768, depth=12, heads=12, kv_heads=12, ffn_dim=2048, vocab_size=50257, tied=True
    ),
    # Llama 3.2 1B and 3B, Llama 3.1 8B and 70B, from the config.json of each
    "1b": _llama(dim=2048, depth=16, heads=32, ffn_dim=8192, tied=True),
    "3b": _llama(dim=3072, depth=28, heads=24, ffn_dim=8192, tied=True),
    "8b": _llama(dim=4096, depth=32, heads=32, ffn_dim=14336, tied=False),
    "70b": _llama(dim=8192, depth=80, heads=64, ffn_dim=28672, tied=False),
}
