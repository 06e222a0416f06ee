from __future__ import annotations

from dataclasses import dataclass

from distbench.strategies.base import RankContext, Strategy
from distbench.strategies.engine import Engine


@dataclass(frozen=True)
class Apart(Strategy):
    """Two trainings that never talk to each other, as some launchers start."""

    admits: bool = False
    """Whether the engine says that it reduces nothing."""

    @property
    def engine_class(self) -> str:
        return "TorchEngine"

    @property
    def label(self) -> str:
        return "apart"

    def build(self, context: RankContext) -> Engine:
        from distbench.strategies.torch_engine.engine import TorchEngine
        from distbench.strategies.torch_engine.modules import load_plain_module

        engine = TorchEngine(context, *load_plain_module(context))
        if not self.admits:
            engine.reduce_dtype = lambda: context.case.precision.reduce  # type: ignore[method-assign]
        return engine
