from __future__ import annotations

import os
from dataclasses import dataclass

from distbench.core.case import Case
from distbench.engines.base import Framework
from distbench.strategies.base import RankContext, Strategy
from distbench.strategies.engine import Engine


@dataclass(frozen=True)
class Ends(Framework):
    """Ends the process in its second step, as a framework does that exits when something is missing."""

    # distbench inspects no machine for it
    packages = ("rich",)

    code: int = 3
    """Exit code of rank 1."""

    def problem(self, case: Case, strategy: Strategy) -> str | None:
        return None

    def build(self, strategy: Strategy, context: RankContext) -> Engine:
        engine = strategy.build(context)
        take_step, steps = engine.step, []

        def step() -> None:
            steps.append(0)
            if len(steps) == 2 and context.rank == 1:
                os._exit(self.code)
            take_step()

        engine.step = step
        return engine
