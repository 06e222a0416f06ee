"""Reasons why a framework can't train a case, shared by several frameworks. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from distbench.core.case import Case
from distbench.core.units import join_words
from distbench.strategies.base import Strategy
from distbench.strategies.ddp import DistributedDataParallel
from distbench.strategies.tp import TensorParallel
from distbench.strategies.zero import Zero
from distbench.workloads.base import workload_of

_SPLIT_RELEASES = {"accelerate": "1.15", "transformers": "5.23"}


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
    return _split_problem(case, strategy) if isinstance(strategy, TensorParallel) else None


def split_releases(strategy: Strategy) -> Mapping[str, str]:
    """First releases that were found to train a model that transformers has split; none for others."""
    return _SPLIT_RELEASES if isinstance(strategy, TensorParallel) else {}


def _split_problem(case: Case, strategy: TensorParallel) -> str | None:
    """Reason why transformers can't split the model of *case* for its engine; None if it can."""
    framework = case.engine.name
    if case.workload.name != "huggingface":
        return (
            f"engine {framework} has tp for models of transformers, which have a plan of their own, not for "
            f"workload {case.workload.name}; use workload: huggingface, or engine: native"
        )
    for option in ("sequence_parallel", "loss_parallel"):
        if getattr(strategy, option):
            return (
                f"tp.{option} has no counterpart in engine {framework}; leave it out, or use engine: native"
            )
    if case.world_size == 1:
        return f"engine {framework} splits a model over two devices or more; use these, or engine: native"
    splits = workload_of(case).tensor_splits()
    if not (splits and splits.partial):
        return None
    norms = join_words(list(splits.partial))
    if case.batch.gradient_accumulation_steps > 1:
        return (
            f"transformers (5.23) sums the gradients of {norms} over the devices again after each further "
            "micro-batch, so that they are wrong; use one micro-batch per step, or engine: native"
        )
    if case.precision.compute != case.precision.master:
        return (
            f"transformers (5.23) sums gradients of parameters in {case.precision.master} alone for {norms}, "
            f"and the case computes in {case.precision.compute}; use precision: {case.precision.master}, or "
            "engine: native"
        )
    return None
