from __future__ import annotations

from dataclasses import dataclass

from distbench.strategies.base import Engine, Setting, Strategy


@dataclass(frozen=True)
class Apart(Strategy):
    """Two trainings that never talk to each other, as some launchers start."""

    @property
    def engine(self) -> str:
        return "TorchEngine"

    @property
    def label(self) -> str:
        return "apart"

    def build(self, setting: Setting) -> Engine:
        from distbench.strategies._torch import TorchEngine, plain_module

        return TorchEngine(setting, *plain_module(setting))
