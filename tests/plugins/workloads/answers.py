"""``answers``: a decoder whose loss is a sum over labels and their number, as in fine-tuning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from distbench.workloads.base import Loss, summed_cross_entropy
from distbench.workloads.transformer import Transformer

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(frozen=True)
class Answers(Transformer):
    """The built-in decoder; rows with more labels weigh more."""

    def loss(self, module: nn.Module, batch: dict[str, torch.Tensor]) -> Loss:
        return summed_cross_entropy(module(batch["input_ids"]), batch["labels"])
