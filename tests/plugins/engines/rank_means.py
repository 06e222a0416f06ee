from __future__ import annotations

from dataclasses import dataclass

from distbench.core.case import Case
from distbench.engines.base import Framework
from distbench.strategies.base import RankContext, Strategy
from distbench.strategies.engine import Engine


@dataclass(frozen=True)
class RankMeans(Framework):
    """Means of the means of the ranks: another training where ranks count different numbers of labels."""

    def problem(self, case: Case, strategy: Strategy) -> str | None:
        return None

    def build(self, strategy: Strategy, context: RankContext) -> Engine:
        engine = strategy.build(context)

        def mean_of_rank(module, batch):
            return context.workload.loss(module, batch)

        engine._loss = mean_of_rank
        return engine
