"""``single``: one process, one device, no wrapper: the reference that all others are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from distbench.strategies._model_states import Replicated
from distbench.strategies.base import Engine, Setting


@dataclass(frozen=True)
class Single(Replicated):
    """One process on one device without any wrapper; the reference, always at world size 1."""

    engine = "TorchEngine"
    label = "single"
    simplicity = 0

    def world_sizes(self, asked: Sequence[int]) -> Sequence[int]:
        return (1,)

    def build(self, setting: Setting) -> Engine:
        from distbench.strategies.torch_engine.engine import TorchEngine
        from distbench.strategies.torch_engine.modules import plain_module

        return TorchEngine(setting, *plain_module(setting))
