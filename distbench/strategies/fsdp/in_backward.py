"""Options with which FSDP can't update parameters in the backward pass. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distbench.core.case import Case
from distbench.strategies import _in_backward

if TYPE_CHECKING:
    from distbench.strategies.fsdp import FullyShardedDataParallel


def in_backward_problem(strategy: FullyShardedDataParallel, case: Case) -> str | None:
    """Reason why *strategy* can't train *case* with ``optimizer_in_backward``; None if it can."""
    option = _in_backward.OPTION
    if strategy.version == 1:
        return f"{option} needs FSDP2, which has a hook for each reduced gradient; set version: 2"
    if strategy.has_tensor_parallelism:
        return (
            f"{option} is not supported with tp, which reduces gradients of norms after the backward pass; "
            f"set {option}: false"
        )
    if strategy.cpu_offload:
        return f"{option} is not supported with cpu_offload; set one of them to false"
    return _in_backward.optimizer_in_backward_problem(case, on_dtensors=True)
