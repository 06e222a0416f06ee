from __future__ import annotations

from dataclasses import dataclass

from distbench.strategies.base import Setting, Strategy
from distbench.strategies.engine import Engine


@dataclass(frozen=True)
class Apart(Strategy):
    """Two trainings that never talk to each other, as some launchers start."""

    admits: bool = False
    """Whether the engine says that it reduces nothing."""

    @property
    def engine(self) -> str:
        return "TorchEngine"

    @property
    def label(self) -> str:
        return "apart"

    def build(self, setting: Setting) -> Engine:
        from distbench.strategies.torch_engine.engine import TorchEngine
        from distbench.strategies.torch_engine.modules import plain_module

        engine = TorchEngine(setting, *plain_module(setting))
        if not self.admits:
            engine.reduce_dtype = lambda: setting.case.precision.reduce  # type: ignore[method-assign]
        return engine
