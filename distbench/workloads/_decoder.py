"""The module behind ``transformer``: a decoder as the Llama family builds it.

Rules that keep it the same under every strategy: a parameter is used only in the forward of the
module that owns it (ZeRO-3 and FSDP2 gather in that module's hooks), a block takes tensors by
position (activation checkpointing), nothing is drawn in forward, and there are no buffers (each
framework moves and casts buffers in its own way).
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from distbench.workloads._attention import causal_attention, document_mask
from distbench.workloads._experts import MixtureOfExperts
from distbench.workloads.context import AttentionFunction

if TYPE_CHECKING:
    from distbench.workloads._dimensions import Dimensions

INIT_STD = 0.02
"""Standard deviation of the initial weights (GPT-2, Llama recipes)."""


class Linear(nn.Linear):
    """A linear layer without bias, drawn from a normal distribution; not drawn if *std* is None.

    It draws in its own constructor, because ZeRO-3 shards a module as soon as that returns.
    """

    def __init__(self, in_features: int, out_features: int, std: float | None = INIT_STD) -> None:
        self._std = std
        super().__init__(in_features, out_features, bias=False)

    def reset_parameters(self) -> None:
        """Draw the weight."""
        if self._std is not None:
            nn.init.normal_(self.weight, std=self._std)


class Embedding(nn.Embedding):
    """A lookup table, drawn from the same distribution as the linear layers."""

    def reset_parameters(self) -> None:
        """Draw the table."""
        nn.init.normal_(self.weight, std=INIT_STD)


class Attention(nn.Module):
    """Causal grouped-query attention (arXiv 2305.13245) with rotary positions (2104.09864)."""

    def __init__(self, dims: Dimensions) -> None:
        super().__init__()
        self._head_dim = dims.head_dim
        self.attend: AttentionFunction = partial(causal_attention, window=dims.window)
        kv_dim = dims.kv_heads * dims.head_dim
        self.wq = Linear(dims.dim, dims.dim)
        self.wk = Linear(dims.dim, kv_dim)
        self.wv = Linear(dims.dim, kv_dim)
        self.wo = Linear(dims.dim, dims.dim, residual_std(dims))

    def forward(self, x: torch.Tensor, rope: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Output (batch, seq, dim) of attention for *x* (batch, seq, dim); *mask* as in ``document_mask``."""
        query, key, value = (self._by_head(projection(x)) for projection in (self.wq, self.wk, self.wv))
        masked = () if mask is None else (mask,)
        mixed = self.attend(apply_rope(query, rope), apply_rope(key, rope), value, *masked)
        out: torch.Tensor = self.wo(mixed.transpose(1, 2).flatten(2))
        return out

    def _by_head(self, x: torch.Tensor) -> torch.Tensor:
        by_head: torch.Tensor = x.unflatten(-1, (-1, self._head_dim))
        return by_head.transpose(1, 2)


class SwiGLU(nn.Module):
    """The gated feed-forward network of arXiv 2002.05202."""

    def __init__(self, dims: Dimensions) -> None:
        super().__init__()
        self.gate = Linear(dims.dim, dims.ffn_dim)
        self.up = Linear(dims.dim, dims.ffn_dim)
        self.down = Linear(dims.ffn_dim, dims.dim, residual_std(dims))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Tensor shaped like *x* (batch, seq, dim)."""
        out: torch.Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return out


class Block(nn.Module):
    """One layer: attention and feed-forward, each behind a norm and beside a residual path."""

    def __init__(self, dims: Dimensions) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(dims.dim, eps=dims.norm_eps)
        self.attention = Attention(dims)
        self.ffn_norm = nn.RMSNorm(dims.dim, eps=dims.norm_eps)
        has_experts = dims.experts is not None
        self.ffn = MixtureOfExperts(dims, INIT_STD, residual_std(dims)) if has_experts else SwiGLU(dims)

    def forward(self, x: torch.Tensor, rope: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Tensor shaped like *x* (batch, seq, dim); *rope* is ``rope_table``'s."""
        x = x + self.attention(self.attention_norm(x), rope, *(() if mask is None else (mask,)))
        out: torch.Tensor = x + self.ffn(self.ffn_norm(x))
        return out


class Decoder(nn.Module):
    """Decoder from token ids (batch, seq) to logits (batch, seq, vocabulary)."""

    def __init__(self, dims: Dimensions) -> None:
        super().__init__()
        self.dims = dims
        self.positions: torch.Tensor | None = None
        """Indices in the row of the positions that it gets; None: it gets whole rows."""
        self.embedding = Embedding(dims.vocab_size, dims.dim)
        self.blocks = nn.ModuleList(Block(dims) for _ in range(dims.depth))
        self.norm = nn.RMSNorm(dims.dim, eps=dims.norm_eps)
        self.head = Linear(dims.dim, dims.vocab_size, None if dims.tied else INIT_STD)
        if dims.tied:
            # a separate module with the weight of the embedding: the hooks of ZeRO-3 and FSDP see it
            self.head.weight = self.embedding.weight

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor | None = None) -> torch.Tensor:
        """Logits (batch, seq, vocabulary) in the compute dtype.

        *position_ids* (batch, seq) has the place of each token in its document, if rows are packed.
        """
        x = self.embedding(input_ids)
        # the positions of the ids: under sequence parallelism x has only some of them
        length, shape = input_ids.shape[1], self.dims
        positions = self.positions if position_ids is None else position_ids
        rope = rope_table(length, shape.head_dim, shape.rope_theta, x, positions)
        masks = () if position_ids is None else (document_mask(position_ids, shape.window),)
        for block in self.blocks:
            x = block(x, rope, *masks)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


class DecoderStage(nn.Module):
    """Pipeline stage with some blocks of *whole*: the first has the embedding, the last norm and head.

    Maps token ids (batch, seq), or the output of the block before (batch, seq, dim), to the input of the next
    one, or to logits (batch, seq, vocabulary); rows have that many *positions*.
    """

    def __init__(self, whole: Decoder, blocks: range, positions: int) -> None:
        super().__init__()
        self._dims, self._positions = whole.dims, positions
        self.embedding = whole.embedding if blocks.start == 0 else None
        # by their index in the whole model, so that parameters keep their names
        self.blocks = nn.ModuleDict({str(place): whole.blocks[place] for place in blocks})
        is_last = blocks.stop == len(whole.blocks)
        self.norm = whole.norm if is_last else None
        self.head = whole.head if is_last else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Output of the stage for its input *x*; each stage makes the rotary positions itself."""
        if self.embedding is not None:
            x = self.embedding(x)
        # of all positions: under sequence parallelism x has only some of them
        rope = rope_table(self._positions, self._dims.head_dim, self._dims.rope_theta, x)
        for block in self.blocks.values():
            x = block(x, rope)
        return x if self.norm is None or self.head is None else self.head(self.norm(x))


def residual_std(dims: Dimensions) -> float:
    """GPT-2's standard deviation for projections into the residual path: 1/sqrt(2 x depth) of the others."""
    return INIT_STD / math.sqrt(2 * dims.depth)


def rope_table(
    length: int, head_dim: int, theta: float, like: torch.Tensor, positions: torch.Tensor | None = None
) -> torch.Tensor:
    """Cos and sin of each position's angles (2, length, head_dim / 2), placed and typed as *like*.

    Positions are counted from 0, or given by *positions*: (length), or (batch, length) for a table (2, batch,
    1, length, head_dim / 2).

    Made once per forward pass rather than kept as a buffer: a buffer is garbage after the meta
    device, and DeepSpeed casts buffers to 16 bits where FSDP2 does not. Angles are computed in
    fp32, and rounded to the compute dtype here because FSDP2 would round a block's inputs anyway.
    """
    steps = torch.arange(0, head_dim, 2, device=like.device, dtype=torch.float32) / head_dim
    if positions is None:
        positions = torch.arange(length, device=like.device)
    angles = positions.float().unsqueeze(-1) * theta**-steps
    if positions.ndim > 1:
        # all heads have the same
        angles = angles.unsqueeze(1)
    return torch.stack((angles.cos(), angles.sin())).to(like.dtype)


def apply_rope(x: torch.Tensor, rope: torch.Tensor) -> torch.Tensor:
    """*x* (batch, heads, seq, head_dim) rotated by *rope*, with halves paired as in Hugging Face."""
    cos, sin = rope
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
