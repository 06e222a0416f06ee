from __future__ import annotations

from dataclasses import dataclass

from distbench.core.case import Case
from distbench.engines.base import Framework
from distbench.strategies.base import RankContext, Strategy
from distbench.strategies.engine import Engine


@dataclass(frozen=True)
class Broken(Framework):
    """A framework that can't be imported, as one whose library is missing."""

    imports = ("a_library_that_is_not_there",)

    def problem(self, case: Case, strategy: Strategy) -> str | None:
        return None

    def build(self, strategy: Strategy, context: RankContext) -> Engine:
        import a_library_that_is_not_there

        return a_library_that_is_not_there.build(strategy, context)
