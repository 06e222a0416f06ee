"""``fabric``: Lightning Fabric."""

from dataclasses import dataclass

from distbench.core.case import Case
from distbench.engines._limits import wrapped_problem
from distbench.engines.base import Framework
from distbench.strategies.base import RankContext, Strategy
from distbench.strategies.engine import Engine
from distbench.strategies.fsdp import FullyShardedDataParallel


@dataclass(frozen=True)
class Fabric(Framework):
    """Lightning Fabric: it sets up model and optimizer, for the loop that its documentation shows."""

    packages = ("lightning-fabric",)
    extra = "fabric"
    strategies = ("ddp", "fsdp")
    imports = ("lightning_fabric",)

    def problem(self, case: Case, strategy: Strategy) -> str | None:
        if isinstance(strategy, FullyShardedDataParallel) and (
            strategy.version == 1 or strategy.has_tensor_parallelism or strategy.optimizer_in_backward
        ):
            return (
                "engine fabric has fsdp with version: 2, without tensor parallelism and without "
                f"optimizer_in_backward, not {strategy.label}; use engine: native"
            )
        return wrapped_problem(case, strategy, self.strategies)

    def build(self, strategy: Strategy, context: RankContext) -> Engine:
        from distbench.engines.fabric.engine import build_fabric

        return build_fabric(strategy, context)
