"""``accelerate``: Hugging Face Accelerate."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from distbench.core.case import Case
from distbench.engines._limits import split_releases, wrapped_problem
from distbench.engines._split_theory import split_traffic
from distbench.engines.base import Framework
from distbench.strategies.base import RankContext, Strategy
from distbench.strategies.description import ExpectedCollective
from distbench.strategies.engine import Engine
from distbench.strategies.tp import TensorParallel


@dataclass(frozen=True)
class Accelerate(Framework):
    """Hugging Face Accelerate: it prepares model and optimizer, for the loop that its documentation shows."""

    packages = ("accelerate",)
    extra = "accelerate"
    strategies = ("ddp", "tp", "zero")
    imports = ("accelerate",)

    def problem(self, case: Case, strategy: Strategy) -> str | None:
        return wrapped_problem(case, strategy, self.strategies)

    def additional_traffic(self, case: Case, strategy: Strategy) -> Sequence[ExpectedCollective]:
        return split_traffic(case, strategy)

    def minimum_releases(self, strategy: Strategy) -> Mapping[str, str]:
        return split_releases(strategy)

    def build(self, strategy: Strategy, context: RankContext) -> Engine:
        if isinstance(strategy, TensorParallel):
            # its imports need newer packages than the others
            from distbench.engines.accelerate.split_model import build_tp

            return build_tp(strategy, context)
        from distbench.engines.accelerate.engine import build_accelerate

        return build_accelerate(strategy, context)
