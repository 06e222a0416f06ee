"""How a model can be split inside its layers, over devices that work on the same rows. Without torch.

Shoeybi et al. 2019 (Megatron-LM, arXiv:1909.08053, section 3): a linear layer cut by its outputs, then one
cut by its inputs, whose partial results are summed; embedding and head are cut by the vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from distbench.core.units import join_words

_VOCAB_PADDING = 128
"""Megatron-LM pads the vocabulary to a multiple of it (make-vocab-size-divisible-by)."""


@dataclass(frozen=True)
class TensorSplits:
    """Which modules of a model are cut, by name (``*`` stands for any number), and by what numbers."""

    colwise: tuple[str, ...]
    """Linear layers that are cut by their outputs. Of those that take the same tensor, its gradient is summed
    once."""
    rowwise: tuple[str, ...]
    """Linear layers that are cut by their inputs, which come from the ones before."""
    embedding: str
    """The embedding, cut by token ids."""
    head: str
    """The linear layer that makes logits, cut by token ids."""
    replicated: tuple[str, ...]
    """Modules with parameters that every device has whole: norms."""
    divisible_sizes: Mapping[str, int]
    """What the number of devices has to divide, by the option's name."""
    regions: int
    """How often layers in ``colwise`` and then ``rowwise`` are run in one forward pass: twice a layer, for
    attention and the feed-forward network."""
    layers: int
    """Layers that activation checkpointing makes again one by one."""
    hidden_size: int
    """Numbers of one position between layers."""
    seq_len: int
    """Positions of one sample."""
    vocab_size: int
    """Logits of one position."""
    replicated_parameters: int
    """Parameters of all modules in ``replicated``."""
    replicated_tensors: int
    """Tensors of all modules in ``replicated``."""
    tied: bool = False
    """Whether ``embedding`` and ``head`` are one tensor."""
    padded_option: str = ""
    """Which of ``divisible_sizes`` may be larger than it need be: that of the vocabulary; empty: none."""
    unsupported_reason: str = ""
    """Why this model can't be split over any number of devices; empty: it can."""
    partial: tuple[str, ...] = ()
    """Modules with parameters that every device has whole, and runs over its part of the heads alone: norms
    of queries and keys. Their gradients are summed over the devices."""
    sequence_parallel_problem: str = ""
    """Why what is between its layers can't be split by position; empty: it can."""

    def problem(self, devices: int) -> str | None:
        """Why the model can't be split over that many *devices*, or None if it can."""
        wrong = self.unsupported_reason or divisibility_problem(self.divisible_sizes, devices)
        return wrong and f"{wrong}{self._padding(devices)}"

    def _padding(self, devices: int) -> str:
        """The size to which the vocabulary may be padded, if it alone can't be divided, in words."""
        size = self.divisible_sizes.get(self.padded_option, 0)
        others = [count for name, count in self.divisible_sizes.items() if name != self.padded_option]
        if self.unsupported_reason or not size or any(count % devices for count in others):
            return ""
        multiple = math.lcm(_VOCAB_PADDING, devices)
        fits = -(-size // multiple) * multiple
        return f"; set {self.padded_option}: {fits} (padded, as Megatron-LM does, for all strategies)"


def divisibility_problem(counts: Mapping[str, int], devices: int) -> str | None:
    """Which of *counts* (by the option's name) can't be divided by *devices*, and what would divide all.

    None: all can.
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
