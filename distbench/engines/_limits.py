"""Reasons why a framework can't train a case, shared by several frameworks. Imports no torch."""

from __future__ import annotations

from collections.abc import Collection

from distbench.core.case import Case
from distbench.strategies.base import Strategy
from distbench.strategies.ddp import DistributedDataParallel
from distbench.strategies.zero import Zero


def wrapped_problem(case: Case, strategy: Strategy, framework: str, known: Collection[str]) -> str | None:
    """Reason why *framework*, which knows the strategies *known*, can't train *case*; None if it can."""
    if case.strategy.name not in known:
        return (
            f"engine {framework} has no strategy {case.strategy.name}; it has {', '.join(known)}; "
            "use one of these, or engine: native"
        )
    if isinstance(strategy, DistributedDataParallel) and (
        strategy.sharded_optimizer or strategy.intended_difference
    ):
        return f"engine {framework} runs DDP as it is, not {strategy.label}; use engine: native"
    if isinstance(strategy, Zero) and (strategy.pipeline or strategy.tensor_parallelism.ranks > 1):
        return f"engine {framework} runs ZeRO over all ranks, not {strategy.label}; use engine: native"
    if case.precision.compute == "fp16" and not isinstance(strategy, Zero):
        # the scale would be the framework's own GradScaler, with its own rule for overflows
        return f"engine {framework} trains in fp16 with zero alone; use bf16 or fp32, or engine: native"
    return None
