"""``transformer``: a decoder of today, from a toy for the CPU to the shapes of Llama 3."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from distbench.bounds import Bound, Count
from distbench.data.base import Shape
from distbench.workloads._dimensions import PRESETS, Dimensions
from distbench.workloads.base import Workload, cross_entropy

if TYPE_CHECKING:
    import torch
    from torch import nn

_Size = Annotated[int | None, Bound(1)]
_Real = Annotated[float | None, Bound(0, open_low=True)]


@dataclass(frozen=True)
class Transformer(Workload):
    """A decoder of today: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

    The model of every preset is drawn from the seed; no checkpoint is loaded.
    """

    preset: Literal["tiny", "gpt2-small", "1b", "3b", "8b", "70b"] = "tiny"
    """The dimensions to start from: tiny (1 M parameters, for CPUs), gpt2-small (124 M), or a Llama 3."""
    seq_len: Count = 128
    """Tokens in one sample."""
    dim: _Size = None
    """Width of the residual path; null: from the preset, here and below."""
    depth: _Size = None
    """Number of blocks."""
    heads: _Size = None
    """Attention heads; they divide dim."""
    kv_heads: _Size = None
    """Heads of keys and values, shared by groups of attention heads; they divide heads."""
    ffn_dim: _Size = None
    """Width inside the SwiGLU feed-forward network."""
    vocab_size: _Size = None
    """Number of token ids."""
    tied: bool | None = None
    """Whether the output head is the embedding."""
    norm_eps: _Real = None
    """What RMSNorm adds to the mean square."""
    rope_theta: _Real = None
    """Base of the rotary frequencies."""

    @property
    def shape(self) -> Shape:
        return Shape("tokens", self.seq_len, self._dimensions.vocab_size)

    def problem(self) -> str | None:
        return "; ".join(self._dimensions.problems()) or None

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
        given = {name: getattr(self, name) for name in asdict(preset)}
        return replace(preset, **{name: value for name, value in given.items() if value is not None})
