from __future__ import annotations

from dataclasses import dataclass

from distbench.core.case import Case
from distbench.engines.base import Framework
from distbench.strategies.base import RankContext, Strategy
from distbench.strategies.engine import Engine


@dataclass(frozen=True)
class Bare(Framework):
    """Says nothing and wraps nothing: every rank trains alone, as a framework does that found no others."""

    def problem(self, case: Case, strategy: Strategy) -> str | None:
        return None

    def build(self, strategy: Strategy, context: RankContext) -> Engine:
        from distbench.strategies.torch_engine.engine import TorchEngine
        from distbench.strategies.torch_engine.modules import load_plain_module

        return TorchEngine(context, *load_plain_module(context))
