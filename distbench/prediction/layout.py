"""Division of a step among ranks, as far as its time depends on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Recomputation = Literal["none", "full", "elementwise", "half", "attention"]
"""What the backward pass computes again of a layer: nothing; its whole forward pass; all but products and
attention; every second product besides (torchtitan's ``op`` mode); the core of attention (Korthikanti et al.,
arXiv:2205.05198)."""
Float8 = Literal["none", "tensor", "row", "block"]
"""What has a scale of its own in float8 products."""


@dataclass(frozen=True)
class StepLayout:
    """Ranks of a step in the dimensions of their mesh, and the batches of one of them.

    From the innermost outwards: ``tensor`` ranks split each layer, ``context`` ranks each row, ``shards`` x
    ``replicas`` ranks have rows of their own, and ``stages`` ranks make a pipeline. Sharded parameters are
    sharded over ``shards`` x ``context`` ranks.
    """

    length: int
    """Tokens of a row."""
    micro_batch: int
    """Rows of a micro-batch of one data-parallel rank."""
    micro_batches: int
    """Micro-batches of one data-parallel rank in a step; with a pipeline, those that enter it."""
    tensor: int = 1
    context: int = 1
    shards: int = 1
    replicas: int = 1
    stages: int = 1
    chunks: int = 1
    """Pipeline stages on a rank."""
    splits_backward: bool = False
    """True if a pipeline computes gradients of weights where it would be idle (zero-bubble schedules)."""
    gather_frequency: Literal["never", "step", "micro_batch", "pass"] = "never"
    """How often sharded parameters are all-gathered, as in ``ShardingLevel``."""
    reduce_frequency: Literal["step", "micro_batch"] = "step"
    """How often gradients are reduced."""
    reduce_op: Literal["reduce_scatter", "all_reduce"] = "reduce_scatter"
    """Operation that reduces gradients over the ranks that shard."""
    parts: int = 1
    """Micro-batches of a pipeline that count as one for ``micro_batch`` in those two."""
    schedules: int = 1
    """Times that a pipeline fills and drains in a step."""
    overlaps_gathers: bool = True
    """True if parameters are gathered beside computation."""
    overlaps_reductions: bool = True
    """True if gradients are reduced beside the backward pass."""
    sequence_parallel: bool = False
    """True if ``tensor`` ranks split activations between layers, too."""
    overlaps_tensor: bool = False
    """True if collectives inside layers run beside the products that need them."""
    vocab_parallel: bool = True
    """True if ``tensor`` ranks split embedding and head, too."""
    backward_all_reduces: int = 2
    """All-reduces of ``tensor`` ranks in the backward pass of a layer; forward there are two."""
    gathers_logits: bool = False
    """True if ``tensor`` ranks gather logits for the loss, which else is computed from split ones."""
    exchange: Literal["ring", "repeated_ring", "ulysses"] = "ring"
    """Exchange of keys and values by ``context`` ranks: a ring, one that repeats them for all heads and has
    gradients in fp32 (torch's), or all-to-alls."""
    recomputation: Recomputation = "none"
    dtype: str = "bf16"
    """Dtype of the computation, as in a case."""
    tf32: bool = False
    float8: Float8 = "none"
    element_bytes: int = 2
    """Bytes of an element of activations."""
    parameter_bytes: int = 2
    """Bytes of a parameter that is gathered."""
    gradient_bytes: int = 4
    """Bytes of an element that is reduced."""
    update_bytes: float = 28
    """Bytes that the update reads and writes for each parameter."""

    @property
    def tokens(self) -> float:
        """Tokens of a micro-batch on one rank."""
        return self.micro_batch * self.length / self.context

    @property
    def vocab_ranks(self) -> int:
        """Ranks that split embedding and head."""
        return self.tensor if self.vocab_parallel else 1

    @property
    def ranks(self) -> int:
        """All ranks."""
        return self.stages * self.stage_ranks

    @property
    def stage_ranks(self) -> int:
        """Ranks that have the same stage of a pipeline."""
        return self.tensor * self.context * self.shards * self.replicas

    @property
    def tokens_per_step(self) -> int:
        """Tokens of all ranks in a step."""
        return self.micro_batch * self.micro_batches * self.length * self.shards * self.replicas
