"""``native``: distbench's own steps."""

from dataclasses import dataclass

from distbench.core.case import Case
from distbench.engines.base import Framework
from distbench.strategies.base import RankContext, Strategy
from distbench.strategies.engine import Engine


@dataclass(frozen=True)
class Native(Framework):
    """The strategy's own objects in the loop that its documentation shows: no other framework."""

    def problem(self, case: Case, strategy: Strategy) -> str | None:
        return None

    def build(self, strategy: Strategy, context: RankContext) -> Engine:
        return strategy.build(context)
