"""Collectives that frameworks add to those of ``tp``, with a model that transformers has split. No torch."""

from __future__ import annotations

from distbench.core.case import Case
from distbench.core.dtypes import DTYPE_BYTES
from distbench.strategies.base import Strategy
from distbench.strategies.description import ExpectedCollective
from distbench.strategies.tp import TensorParallel
from distbench.workloads.base import workload_of


def split_traffic(
    case: Case, strategy: Strategy, *, averages_norms: bool = False
) -> list[ExpectedCollective]:
    """Collectives of a step of *case* besides those of *strategy*; none of another than ``tp``.

    In transformers (5.23) each layer that is split by its outputs sums the gradient of its input by itself;
    in theory those with the same input sum it once.

    Args:
        averages_norms: The gradients of the parameters that are whole on each device are averaged.
    """
    splits = workload_of(case).tensor_splits() if isinstance(strategy, TensorParallel) else None
    if splits is None:
        return []
    more = len(splits.colwise) * splits.layers - splits.regions
    elements = case.batch.global_batch_size * splits.seq_len * splits.hidden_size
    inputs = more * elements * DTYPE_BYTES[case.precision.compute]
    calls = more * case.batch.gradient_accumulation_steps
    found = [ExpectedCollective("all_reduce", inputs, "tp", calls)]
    if averages_norms:
        norms = splits.replicated_parameters * DTYPE_BYTES[case.precision.master]
        found.append(ExpectedCollective("all_reduce", norms, "tp", splits.replicated_tensors))
    return found
