"""Tensor-parallel split of a model, over devices that work on the same rows. Without torch.

Shoeybi et al. 2019 (Megatron-LM, arXiv:1909.08053, section 3): a linear layer split by its outputs, then one
split by its inputs, whose partial results are summed; embedding and head are split by the vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from distbench.core.units import join_words

_VOCAB_PADDING = 128
"""Megatron-LM pads the vocabulary to a multiple of this (make-vocab-size-divisible-by)."""


@dataclass(frozen=True)
class TensorSplits:
    """Tensor-parallel split of a model: names of modules (``*`` stands for any number), and sizes."""

    colwise: tuple[str, ...]
    """Linear layers that are split by their outputs. The gradient of a tensor that several of them take is
    summed once."""
    rowwise: tuple[str, ...]
    """Linear layers that are split by their inputs, which come from the ones before."""
    embedding: str
    """The embedding, split by token ids."""
    head: str
    """The linear layer that makes logits, split by token ids."""
    replicated: tuple[str, ...]
    """Modules with parameters that every device has whole: norms."""
    divisible_sizes: Mapping[str, int]
    """Sizes that the number of devices must divide, by option."""
    regions: int
    """Runs of layers in ``colwise`` and then ``rowwise`` in one forward pass: two per layer, for attention
    and the feed-forward network."""
    layers: int
    """Layers that activation checkpointing recomputes one by one."""
    hidden_size: int
    """Elements of one position between layers."""
    seq_len: int
    """Positions of one sample."""
    vocab_size: int
    """Logits of one position."""
    replicated_parameters: int
    """Parameters of all modules in ``replicated``."""
    replicated_tensors: int
    """Tensors of all modules in ``replicated``."""
    tied: bool = False
    """True if ``embedding`` and ``head`` are one tensor."""
    padded_option: str = ""
    """Option in ``divisible_sizes`` that may be padded: that of the vocabulary; empty: none."""
    unsupported_reason: str = ""
    """Reason why this model can't be split over any number of devices; empty: it can."""
    partial: tuple[str, ...] = ()
    """Modules with parameters that every device has whole, but runs only over its part of the heads: norms of
    queries and keys. Their gradients are summed over the devices."""
    sequence_parallel_problem: str = ""
    """Reason why tensors between its layers can't be split by position; empty: they can."""

    def problem(self, devices: int) -> str | None:
        """Reason why the model can't be split over that many *devices*; None if it can."""
        wrong = self.unsupported_reason or divisibility_problem(self.divisible_sizes, devices)
        return wrong and f"{wrong}{self._padding(devices)}"

    def _padding(self, devices: int) -> str:
        """Advice to pad the vocabulary, if only that is not divisible; otherwise empty."""
        size = self.divisible_sizes.get(self.padded_option, 0)
        others = [count for name, count in self.divisible_sizes.items() if name != self.padded_option]
        if self.unsupported_reason or not size or any(count % devices for count in others):
            return ""
        multiple = math.lcm(_VOCAB_PADDING, devices)
        fits = -(-size // multiple) * multiple
        return f"; set {self.padded_option}: {fits} (padded, as Megatron-LM does, for all strategies)"


def divisibility_problem(counts: Mapping[str, int], devices: int) -> str | None:
    """Describe the *counts* (by option) that *devices* does not divide, with the divisors of all.

    None: it divides all.
    """
    wrong = [f"{name} = {count}" for name, count in counts.items() if count % devices]
    if not wrong:
        return None
    common = math.gcd(*counts.values())
    fitting = [str(size) for size in range(1, common + 1) if not common % size]
    every = ", ".join(f"{name} = {count}" for name, count in counts.items())
    return (
        f"{join_words(wrong)} {'is' if len(wrong) == 1 else 'are'} not divisible by {devices}; numbers of "
        f"devices that divide {every}: {', '.join(fitting)}"
    )
