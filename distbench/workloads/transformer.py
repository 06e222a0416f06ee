"""``transformer``: a decoder of today, from a toy for the CPU to the shapes of Llama 3."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from distbench.data.base import Shape
from distbench.workloads._dimensions import PRESETS, Dimensions
from distbench.workloads.base import Workload, cross_entropy

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(frozen=True)
class Transformer(Workload):
    """A decoder of today: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

    The model of every preset is drawn from the seed; no checkpoint is loaded.
    """

    preset: Literal["tiny", "gpt2-small", "1b", "3b", "8b", "70b"] = "tiny"
    """The dimensions to start from: tiny (1 M parameters, for CPUs), gpt2-small (124 M), or a Llama 3."""
    seq_len: int = 128
    """Tokens in one sample."""
    dim: int | None = None
    """Width of the residual path; null: from the preset, here and below."""
    depth: int | None = None
    """Number of blocks."""
    heads: int | None = None
    """Attention heads; they divide dim."""
    kv_heads: int | None = None
    """Heads of keys and values, shared by groups of attention heads; they divide heads."""
    ffn_dim: int | None = None
    """Width inside the SwiGLU feed-forward network."""
    vocab_size: int | None = None
    """Number of token ids."""
    tied: bool | None = None
    """Whether the output head is the embedding."""
    norm_eps: float | None = None
    """What RMSNorm adds to the mean square."""
    rope_theta: float | None = None
    """Base of the rotary frequencies."""

    @property
    def shape(self) -> Shape:
        return Shape("tokens", self.seq_len, self._dimensions.vocab_size)

    @property
    def tokens_per_sample(self) -> int:
        return self.seq_len

    def problem(self) -> str | None:
        problems = list(self._dimensions.problems())
        if self.seq_len < 1:
            problems.append(f"seq_len = {self.seq_len} must be positive")
        return "; ".join(problems) or None

    def parameters(self) -> int:
        return self._dimensions.parameters()

    def flops_per_sample(self) -> int:
        """``T * (6 N + 12 L H Q T)`` (PaLM, arXiv 2204.02311, appendix B).

        T tokens, L blocks, H heads of width Q. N counts every parameter that a token is
        multiplied with: all of ``parameters()`` but an untied input embedding, which is a lookup;
        a tied embedding counts once, as the head. That is torchtitan's N; Ray and llm-foundry
        keep the untied embedding in. Nothing is taken off for causal masking or added for
        recomputation.
        """
        shape = self._dimensions
        lookup = 0 if shape.tied else shape.vocab_size * shape.dim
        attention = 12 * shape.depth * shape.heads * shape.head_dim * self.seq_len
        return self.seq_len * (6 * (shape.parameters() - lookup) + attention)

    def module(self) -> nn.Module:
        from distbench.workloads._decoder import Decoder

        return Decoder(self._dimensions)

    def layers(self, module: nn.Module) -> list[nn.Module]:
        blocks: Any = module.blocks
        return list(blocks)

    def loss(self, module: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return cross_entropy(module(batch["input_ids"]), batch["labels"])

    @property
    def _dimensions(self) -> Dimensions:
        preset = PRESETS[self.preset]
        given = {field: getattr(self, field) for field in dataclasses.asdict(preset)}
        return dataclasses.replace(preset, **{k: v for k, v in given.items() if v is not None})
