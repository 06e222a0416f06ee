"""DeepSpeed's 1-bit optimizers, and one mistake in what they reduce."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch

from distbench.strategies.base import RankContext
from distbench.strategies.engine import Engine
from distbench.strategies.onebit import OneBit


@dataclass(frozen=True)
class PlantedOneBit(OneBit):
    """1-bit Adam, and one mistake."""

    bug: Literal["none", "alone", "partly", "doubled"] = "none"
    """Nothing is reduced; one tensor is not; gradients are twice what they should be."""

    @property
    def label(self) -> str:
        return f"planted-onebit-{self.bug}"

    def build(self, context: RankContext) -> Engine:
        engine: Any = super().build(context)
        deepspeed, backend = engine._engine, engine._engine.basic_optimizer.comm_backend_handle
        reduce, last = backend.compressed_allreduce, list(deepspeed.module.parameters())[-1]

        def compressed_allreduce(buffer: torch.Tensor, *others: Any) -> torch.Tensor:
            is_left_out = self.bug == "alone" or (self.bug == "partly" and buffer.shape == last.shape)
            return buffer if is_left_out else reduce(buffer, *others)

        backend.compressed_allreduce = compressed_allreduce
        if self.bug == "doubled":
            for parameter in deepspeed.module.parameters():
                parameter.register_hook(lambda gradient: gradient * 2)
        return engine
