"""``single``: one process, one device, no wrapper: the reference that all others are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from distbench.strategies._model_states import Replicated
from distbench.strategies.base import Engine, Setting, Strategy
from distbench.strategies.description import ALL_STATES, PYTORCH_OVERVIEW, ZERO_PAPER, Card, Claim


@dataclass(frozen=True)
class Single(Replicated):
    """One process on one device without any wrapper; the reference, always at world size 1."""

    engine = "TorchEngine"
    label = "single"
    simplicity = 0
    card = Card(
        "nothing",
        (
            Claim("shards", "Nothing: there is one process, which has the whole batch.", PYTORCH_OVERVIEW),
            Claim("moves", "Nothing.", PYTORCH_OVERVIEW),
            Claim("keeps", ALL_STATES, ZERO_PAPER),
            Claim("take it if", "the model fits on one device, and that is fast enough."),
        ),
    )

    @classmethod
    def variants(cls) -> tuple[Strategy, ...]:
        return (cls(),)

    def world_sizes(self, asked: Sequence[int]) -> Sequence[int]:
        return (1,)

    def build(self, setting: Setting) -> Engine:
        from distbench.strategies.torch_engine.engine import TorchEngine
        from distbench.strategies.torch_engine.modules import plain_module

        return TorchEngine(setting, *plain_module(setting))
