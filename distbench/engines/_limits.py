"""Reasons why a framework can't train a case, shared by several frameworks. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence

from distbench.core.case import Case
from distbench.strategies.base import Strategy
from distbench.strategies.ddp import DistributedDataParallel
from distbench.strategies.zero import Zero


def wrapped_problem(case: Case, strategy: Strategy, known: Sequence[str]) -> str | None:
    """Reason why the engine of *case* can't take the steps of *strategy*; None if it can.

    *known* are the names of the strategies that it has.
    """
    framework = case.engine.name
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
